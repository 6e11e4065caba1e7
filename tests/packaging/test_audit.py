"""The audit of dependencies fails for a known vulnerability, and reports packages that it could not check."""

from __future__ import annotations

from tests.packaging.audit import verdict

SOUND = {"name": "anyio", "version": "4.6.0", "vulns": []}
SKIPPED = {"name": "aiozk", "skip_reason": "not found"}
VULNERABLE = {"name": "jinja2", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]}


def test_a_known_vulnerability_fails_and_names_the_fix() -> None:
    assert verdict([SOUND, VULNERABLE]) == (1, ["jinja2 2.0: PYSEC-1, fixed in 2.1"])
    assert verdict([VULNERABLE, SKIPPED])[0] == 1


def test_packages_missing_from_the_database_are_named() -> None:
    assert verdict([SOUND, SKIPPED]) == (0, ["not audited: aiozk"])


def test_an_audit_without_a_database_says_that_it_checked_nothing() -> None:
    status, [line] = verdict([SKIPPED])
    assert status == 0
    assert line.startswith("not audited: no database")
