"""`docsite.raises` reads the three forms in which a docstring tells its errors."""

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


def test_a_section_has_an_error_a_line_or_several() -> None:
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


def test_a_line_has_them_between_semicolons() -> None:
    said = read("Count. Raises: NotFoundError: there is none; AccessDeniedError, PayloadError, in the mode FAILFAST.")
    assert said.text == "Count."
    assert said.entries == (
        Raised("NotFoundError", "there is none"),
        Raised("AccessDeniedError", "in the mode FAILFAST"),
        Raised("PayloadError", "in the mode FAILFAST"),
    )


def test_a_line_may_go_on_in_the_next() -> None:
    assert read("Count.\n\nRaises: NotFoundError: there\nis none; InvalidNameError,\nPayloadError.").entries == (
        Raised("NotFoundError", "there is none"),
        Raised("InvalidNameError", ""),
        Raised("PayloadError", ""),
    )


def test_another_members_errors_are_meant_but_for_some() -> None:
    said = read("Add. Raises: as `Jobs.add`, but for AlreadyExistsError; NotFoundError.")
    assert said.entries == (Like("Jobs.add", ("AlreadyExistsError",)), Raised("NotFoundError", ""))


@pytest.mark.parametrize("text", ["what the handler raises", "the error of the first", "trouble; PayloadError"])
def test_what_names_no_error_is_told_as_unread(text: str) -> None:
    assert len(read(f"Run. Raises: {text}.").unread) == 1


def test_a_docstring_without_errors_is_left_as_it_is() -> None:
    assert read("Nothing raises here.\n\nMore.") == Raises("Nothing raises here.\n\nMore.", (), ())
