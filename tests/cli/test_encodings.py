"""Terminals and pipes whose encoding does not have all characters of a payload."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

BODY = "schön 日本"


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", rb"sch\xf6n \u65e5\u672c"), ("latin-1", b"sch\xf6n \\u65e5\\u672c")]
)
def test_characters_that_an_encoding_does_not_have_are_escaped(cli: Cli, encoding: str, shown: bytes) -> None:
    cli("put", "orders", BODY)
    peeked = cli.in_new_process("peek", "orders", PYTHONIOENCODING=encoding)
    assert peeked.status == 0, peeked.stderr
    assert shown in peeked.stdout
    exported = cli.in_new_process("peek", "orders", "--json", PYTHONIOENCODING=encoding)
    assert exported.status == 0, exported.stderr
    assert json.loads(exported.stdout.decode(encoding))["body"] == BODY
