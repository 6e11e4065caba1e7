"""Checks the pinned dependencies against a database of known vulnerabilities, if it is reachable.

``python -m tests.packaging.audit constraints.txt`` runs pip-audit. It fails when a pinned version has a known
vulnerability. If the database knows none of the packages, as with a mirror without advisories, it reports that nothing
was audited and succeeds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMAND = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--no-deps", "--disable-pip"]


def verdict(dependencies: Sequence[dict[str, Any]]) -> tuple[int, list[str]]:
    """Return the exit status and the lines to print for the dependencies of pip-audit's report."""
    skipped = [dependency["name"] for dependency in dependencies if "skip_reason" in dependency]
    found = [
        f"{dependency['name']} {dependency['version']}: {known['id']}, "
        f"fixed in {', '.join(known['fix_versions']) or 'no version'}"
        for dependency in dependencies
        for known in dependency.get("vulns", ())
    ]
    if len(skipped) == len(dependencies):
        return 0, ["not audited: no database of vulnerabilities can be reached from here"]
    if skipped:
        found.append(f"not audited: {', '.join(skipped)}")
    return int(len(found) > bool(skipped)), found


def main(constraints: str) -> int:
    """Audit a file of pinned versions."""
    done = subprocess.run(
        [*_COMMAND, "--format", "json", "--requirement", constraints], capture_output=True, text=True, check=False
    )
    try:
        dependencies = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        reason = (done.stderr.strip().splitlines() or ["no report"])[-1]
        sys.stderr.write(f"not audited: pip-audit could not run: {reason}\n")
        return 0
    status, lines = verdict(dependencies)
    sys.stderr.writelines(f"{line}\n" for line in lines)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
