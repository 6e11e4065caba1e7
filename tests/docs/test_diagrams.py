"""The site draws sequence diagrams, each participant and message with its text."""

from __future__ import annotations

import pytest

from docsite.diagrams import Message, drawing, read, with_drawings

SOURCE = """sequenceDiagram
    participant A as caller
    participant Q as Queue<T>
    A->>Q: put: session/queue.py
    Q->>Q: check
    Q-->>A: the id
"""


def test_a_diagram_has_its_participants_and_messages() -> None:
    names, messages = read(SOURCE)
    assert names == ["caller", "Queue<T>"]
    assert messages == [
        Message(0, 1, "put: session/queue.py", reply=False),
        Message(1, 1, "check", reply=False),
        Message(1, 0, "the id", reply=True),
    ]


def test_a_drawing_shows_all_participants_and_messages_and_has_a_label() -> None:
    drawn = drawing(SOURCE)
    for text in (">caller<", ">Queue&lt;T&gt;<", ">put: session/queue.py<", ">check<", ">the id<"):
        assert text in drawn
    assert 'aria-label="caller to Queue&lt;T&gt;: put: session/queue.py; ' in drawn


def test_a_drawing_leaves_the_rest_of_a_page_unchanged() -> None:
    page = f"before\n\n```mermaid\n{SOURCE}```\n\nafter\n"
    assert with_drawings(page) == f"before\n\n{drawing(SOURCE)}\n\nafter\n"


def test_an_unknown_diagram_line_is_refused() -> None:
    with pytest.raises(ValueError, match="loop until done"):
        drawing(f"{SOURCE}    loop until done\n")
