"""The help of commands: usage lines in the common form, and texts that describe each argument."""

from __future__ import annotations

import pytest

from aiozkqueue.cli.app import run


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    monkeypatch.setenv("COLUMNS", "80")
    return capsys


def text_of(command: str, shown: pytest.CaptureFixture[str]) -> str:
    run(command.split())
    return " ".join(shown.readouterr().out.replace("│", " ").split())


def test_a_usage_line_has_required_arguments_without_braces(shown: pytest.CaptureFixture[str]) -> None:
    for flag in ("--help", "--help-all"):
        assert "Usage: aiozkqueue cancel [OPTIONS] QUEUE ID" in text_of(f"cancel {flag}", shown)
    assert "Usage: aiozkqueue peek [OPTIONS] [QUEUE]" in text_of("peek --help", shown)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("move", "FROM The queue to move messages from. TO The queue to move them to."),
        ("configure", "Messages in one znode, up to 64."),
        ("configure", "How long to keep records of ended messages: 7d; 7d,most=1000,payload; no (none)."),
        ("worker", "An App, a function that returns listeners, or a handler."),
        ("worker", "The queue; MODULE:NAME is then a handler."),
        ("serve", "The port of /healthcheck, /live and /ready."),
        ("delete", "aiozkqueue delete orders-old --yes"),
        ("history", "configure orders --history 7d"),
        ("audit", "configure orders --history 7d Each record is moved exactly once"),
    ],
)
def test_the_help_describes_arguments_and_options(command: str, text: str, shown: pytest.CaptureFixture[str]) -> None:
    assert text in text_of(f"{command} --help", shown)


def test_paragraphs_of_a_help_text_stay_separate(shown: pytest.CaptureFixture[str]) -> None:
    run(["audit", "--help"])
    paragraphs = [
        paragraph.strip() for paragraph in "\n".join(map(str.strip, shown.readouterr().out.splitlines())).split("\n\n")
    ]
    assert [paragraph for paragraph in paragraphs if paragraph.startswith("Each record is moved")]
