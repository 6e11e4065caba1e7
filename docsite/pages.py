"""MkDocs' hooks: pages made of files outside `docs/`, links to them, the table of errors, and diagrams.

The same texts are read in the repository and on the site, so their links are the repository's.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File

from docsite import command_tables, errors_table
from docsite.diagrams import with_drawings

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
# What the site has of the repository beside docs/, and where.
COPIED: Final = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "licence.txt",
    "benchmarks/JOURNAL.md": "benchmarks/journal.md",
    "benchmarks/results/run.json": "benchmarks/run.json",
    "benchmarks/results/run.png": "benchmarks/run.png",
    "benchmarks/results/deep.json": "benchmarks/deep.json",
    "deploy/Dockerfile": "deploy/Dockerfile.txt",
    "deploy/compose.yml": "deploy/compose.yml",
    "deploy/grafana/aiozkqueue.json": "deploy/grafana.json",
    "deploy/kubernetes/dashboard.yaml": "deploy/dashboard.yaml",
    "deploy/kubernetes/kustomization.yaml": "deploy/kustomization.yaml",
    "deploy/kubernetes/scaledobject.yaml": "deploy/scaledobject.yaml",
    "deploy/kubernetes/worker.yaml": "deploy/worker.yaml",
    "deploy/prometheus/alerts.yml": "deploy/alerts.yml",
    "deploy/prometheus/alerts_test.yml": "deploy/alerts_test.yml",
    "deploy/prometheus/prometheus.yml": "deploy/prometheus.yml",
}
EXAMPLES: Final = "examples.md"
_LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made of files elsewhere."""
    for source, page in COPIED.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_bytes()))
    files.append(File.generated(config, EXAMPLES, content=examples()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Mend the links, and put in the table."""
    here = page.file.src_uri
    if page.parent is None:
        # It stands alone in its tab: the list of its neighbours would be itself.
        page.meta["hide"] = ["navigation"]
    written = next((source for source, copy in COPIED.items() if copy == here), f"docs/{here}")
    mended = _LINK.sub(lambda match: f"]({_target(match[1], written, here)}{match[2] or ''})", markdown)
    tabled = with_drawings(mended).replace(errors_table.MARK, errors_table.table())
    return tabled.replace(command_tables.MARK, command_tables.tables()) if command_tables.MARK in tabled else tabled


def _target(link: str, written: str, here: str) -> str:
    """Where a link that a file of the repository has leads on the site."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(written), link))
    page = EXAMPLES if path.split("/")[0] == "examples" else COPIED.get(path, path.removeprefix("docs/"))
    return posixpath.relpath(page, posixpath.dirname(here) or ".")


def examples() -> str:
    """Return the page of all examples: what each shows, and its code."""
    parts = ["# Examples", "Small programs, each of which is run by the tests."]
    for file in sorted((ROOT / "examples").rglob("*.py")):
        code = file.read_text()
        told = ast.get_docstring(ast.parse(code))
        if told is None:
            continue
        title, _, how = told.partition("\n")
        body = code.split('"""', 2)[2].strip()
        name = file.relative_to(ROOT).as_posix()
        parts += [f"## {name}", title]
        if how.strip():
            parts.append(f"```sh\n{how.strip()}\n```")
        parts.append(f"```python\n{body}\n```")
    return "\n\n".join(parts) + "\n"
