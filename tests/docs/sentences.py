"""Prints random sentences, to compare with the writing guide: ``python -m tests.docs.sentences docs --seed 1``.

``docs`` draws from the Markdown pages; ``code`` draws from the docstrings, messages and comments of the package. The
same seed and tree give the same sentences.
"""

from __future__ import annotations

import argparse
import random
import re
from typing import TYPE_CHECKING, Final

from tests.docs import prose

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The minimum number of words of a sentence. Shorter texts are labels.
SHORTEST: Final = 6
_END: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])|\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.))|(?<=[.:])\n\s+(?=[A-Z])")


def sentences(where: str) -> Iterator[tuple[str, str]]:
    """Yield the sentences of the docs or of the code, each with its place."""
    pages = [*prose.ROOT.glob("*.md"), *(prose.ROOT / "docs").rglob("*.md")]
    modules = (prose.ROOT / "aiozkqueue").rglob("*.py")
    for file in sorted(pages if where == "docs" else modules):
        for line, text in prose.markdown(file, code=True) if where == "docs" else prose.python(file, code=True):
            for sentence in _END.split(text):
                plain = " ".join(sentence.split())
                if len(plain.split()) >= SHORTEST and not plain.startswith(("|", "#", "type:", "noqa")):
                    yield f"{file.relative_to(prose.ROOT)}:{line}", plain


def main() -> None:
    """Print the sample, numbered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("where", choices=["docs", "code"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    given = parser.parse_args()
    drawn = random.Random(given.seed).sample(list(sentences(given.where)), given.count)
    for number, (place, sentence) in enumerate(drawn, 1):
        print(f"{number:3} {place}: {sentence}")  # noqa: T201 - the result


if __name__ == "__main__":
    main()
