"""Checks all texts against the word list of the writing guide: ``python -m tests.docs.prose``.

It reads Markdown without code, and the docstrings, comments and messages of the code, including the help of commands
and the texts of errors and log records. It finds only patterns that a machine can recognise; CONTRIBUTING.md has the
whole guide.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]

#: A pattern, and the words to use instead.
WORDS: Final = {
    r"\banew\b": "again",
    r"\bat the (?:most|least)\b": "up to, at most, at least",
    r"\bfor ever\b": "forever",
    r"\bof which one\b|\bof whom\b": "name the noun",
    r"(?<![Tt]here )\b(?:is|are|was|were) none\b": "does not exist, is invalid",
    r"(?<![Tt]here )\bis no (?:JSON|item|number|queue|message|name|path|address)\b": "is not a",
    r"\bso many\b(?![^.]*\bthat\b)": "this many, up to",
    r"(?:^|[.:;] )Who(?:ever)?\b(?![^.?\n]*\?)": "name the subject: a client that, the program that",
    r"\b(?:to|by|for|of|from|with) who\b": "name the person or the program",
    r"(?:^|[.:;] )What(?:ever)? (?!is|are|does|do|to|each|happens|this|you|it|the|a |can|an )": "name the subject",
    r"\bmind(?:s|ed)? (?:the|a|that)\b": "respect, ignore",
    r"\bbears?\b": "has, carries",
    r"\b(?:lies|lie) (?:in|at|below|among|there)\b": "is, is stored",
    r"\bhanded over\b|\bhands? over\b": "delivered",
    r"\btold to\b|\bunless told\b": "configured, by default",
    r"\bnobody else's\b|\bsomebody else's\b": "another client's",
    r"\bone behind the other\b|\bbeside each other\b": "concurrent, in turn",
    r"\bgone on with\b|\bgoes on with\b": "continue",
    r"\bgives? (?:it|them) back\b": "release",
    r"\bby itself alone\b|\bof its own accord\b": "automatically",
    r"\bnought\b": "zero",
    r"\bthe like\b": "give the list",
    r"\bcome(?:s)? to (?:its|their|an) end\b": "end",
    r"\ban? (?:\w+ ){1,3}of its own\b": "its own, a separate",
    r"\bfor good\b": "permanently",
    r"\bonce more\b": "again",
    r"\bgo(?:es)? away by waiting\b": "that waiting does not resolve",
    r"\bin the place of\b": "instead of",
    r"\bcannot be had\b|\bthere is not\b(?= *[.;,])": "is not available, does not exist",
    r"\b(?:another|other) \w+ than\b": "different from, other than",
    r"\b(?:session|delay|lease|claim|wait) is over\b": "has ended, has passed",
    r"\bexactly if\b": "if and only if",
    r"\bis not a text\b|\bobject of texts\b": "string, str",
    r"\bare no (?:list|defect|texts?)\b|\bis no (?:defect|value|str|integer|finite)\b": "is not a",
}
#: The folders with code. This module is excluded, because it contains all the patterns.
_TREES: Final = [
    "aiozkqueue",
    "aiozkqueue_completion",
    "pyspark_aiozkqueue",
    "pytest_aiozkqueue",
    "benchmarks",
    "docsite",
    "examples",
    "tests",
    "zookeeper_wheel",
]
LIST: Final = [(re.compile(pattern, re.MULTILINE), better) for pattern, better in WORDS.items()]
_FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE: Final = re.compile(r"``[^`]+``|`[^`]+`|\]\([^)]*\)")

#: Functions whose arguments are texts for people; `_SPOKEN` has the parameters that are such texts.
_SPEAKING: Final = {"debug", "info", "warning", "error", "exception", "critical", "warn", "echo", "fail", "Finding"}
#: Variables that contain the text of an error.
_NAMED: Final = {"msg", "message"}
_SPOKEN: Final = {"help", "short_help", "epilog", "reason", "detail", "message"}


def blanked(pattern: re.Pattern[str], text: str) -> str:
    """Replace the matches by spaces, so that line numbers and columns stay the same."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def markdown(page: Path, *, code: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of a page, each with its first line. Only ``code`` keeps the code within a line."""
    text = blanked(_FENCE, page.read_text())
    text = text if code else blanked(_CODE, text)
    for match in re.finditer(r"(?:^(?!\s*$).*\n?)+", text, re.MULTILINE):
        yield text.count("\n", 0, match.start()) + 1, match[0]


def messages(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the texts in a node that a person reads: of an error, a log record, a warning or an option's help."""
    if isinstance(node, ast.Assign) and any(getattr(target, "id", "") in _NAMED for target in node.targets):
        if text := _text(node.value):
            yield node.lineno, text
        return
    if not isinstance(node, ast.Call):
        return
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in _SPEAKING or name.endswith(("Error", "Warning")):
        for value in node.args:
            if text := _text(value):
                yield value.lineno, text
    for keyword in node.keywords:
        if keyword.arg in _SPOKEN and (text := _text(keyword.value)):
            yield keyword.value.lineno, text


def _text(value: ast.expr) -> str:
    """Return the text of a literal, with a placeholder for each expression."""
    parts = value.values if isinstance(value, ast.JoinedStr) else [value]
    return "".join(
        (part.value if isinstance(part.value, str) else "") if isinstance(part, ast.Constant) else "`x`"
        for part in parts
        if isinstance(value, ast.JoinedStr | ast.Constant)
    )


def python(module: Path, *, code: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the docstrings, messages and comments of a module, each with its line. Only ``code`` keeps code in them."""
    for line, text in _texts(module.read_text()):
        yield line, text if code else blanked(_CODE, text)


def _texts(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        yield from messages(node)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#: ")


def found() -> Iterator[str]:
    """Yield a line for each pattern that is found."""
    pages = [*ROOT.glob("*.md"), *(page for folder in ("docs", "tests") for page in (ROOT / folder).rglob("*.md"))]
    modules = [module for folder in _TREES for module in (ROOT / folder).rglob("*.py")]
    texts = [(page, markdown(page)) for page in pages]
    texts += [(module, python(module)) for module in modules if module != Path(__file__)]
    for file, parts in sorted(texts):
        for line, text in parts:
            for pattern, better in LIST:
                for match in pattern.finditer(text):
                    place = line + text.count("\n", 0, match.start())
                    yield f"{file.relative_to(ROOT)}:{place}: {match[0].strip()!r}: {better}"


def main() -> int:
    """Print every match. The exit status is 1 if there is one."""
    lines = list(found())
    print(*lines, sep="\n", end="\n" if lines else "")  # noqa: T201 - the result
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
