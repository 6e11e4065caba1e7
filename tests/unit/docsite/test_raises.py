"""`docsite.raises` reads the three forms in which a docstring lists its errors."""

from __future__ import annotations

import pytest

from docsite.raises import Like, Raised, Raises, read

SECTION = """Put a message.

Raises:
    PayloadError: the value is not of the queue's type,
        whatever it is; nothing was sent.
    InvalidNameError, InvalidOptionError,
    SessionClosedError.

Afterwards.
"""


def test_a_raises_section_has_one_or_several_errors_a_line() -> None:
    assert read(SECTION) == Raises(
        "Put a message.\n\nAfterwards.",
        (
            Raised("PayloadError", "the value is not of the queue's type, whatever it is; nothing was sent"),
            Raised("InvalidNameError", ""),
            Raised("InvalidOptionError", ""),
            Raised("SessionClosedError", ""),
        ),
        (),
    )


def test_semicolons_separate_the_errors_of_a_raises_line() -> None:
    said = read("Count. Raises: NotFoundError: there is none; AccessDeniedError, PayloadError, in the mode FAILFAST.")
    assert said.text == "Count."
    assert said.entries == (
        Raised("NotFoundError", "there is none"),
        Raised("AccessDeniedError", "in the mode FAILFAST"),
        Raised("PayloadError", "in the mode FAILFAST"),
    )


def test_a_raises_line_can_continue_on_the_next_line() -> None:
    assert read("Count.\n\nRaises: NotFoundError: there\nis none; InvalidNameError,\nPayloadError.").entries == (
        Raised("NotFoundError", "there is none"),
        Raised("InvalidNameError", ""),
        Raised("PayloadError", ""),
    )


def test_a_raises_line_can_refer_to_another_member_with_exceptions() -> None:
    said = read("Add. Raises: as `Jobs.add`, but for AlreadyExistsError; NotFoundError.")
    assert said.entries == (Like("Jobs.add", ("AlreadyExistsError",)), Raised("NotFoundError", ""))


@pytest.mark.parametrize("text", ["what the handler raises", "the error of the first", "trouble; PayloadError"])
def test_raises_text_without_an_error_is_reported_as_unread(text: str) -> None:
    assert len(read(f"Run. Raises: {text}.").unread) == 1


def test_a_docstring_without_errors_is_left_as_it_is() -> None:
    assert read("Nothing raises here.\n\nMore.") == Raises("Nothing raises here.\n\nMore.", (), ())
