"""How shells ask for words and read the answer: the protocol of the scripts that `--install-completion` installs."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final

from aiozkqueue_completion.words import candidates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VARIABLE: Final = "_AIOZKQUEUE_COMPLETE"


def complete(environment: Mapping[str, str]) -> bool:
    """Answer on stdout if a shell asks; return whether it did. Raises: SystemExit: for fish, there are no words."""
    shell = environment.get(_VARIABLE, "").removeprefix("complete_")
    if shell == "bash":
        lines = environment["COMP_WORDS"].split("\n")
        position = int(environment["COMP_CWORD"])
        begun = lines[position] if position < len(lines) else ""
        found = candidates(lines[1:position], "" if begun == "=" else begun, environment)
        sys.stdout.write("\n".join(word for word, _ in found))
    elif shell == "zsh":
        sys.stdout.write(_for_zsh(_asked(environment)))
    elif shell == "fish":
        found = _asked(environment)
        if environment.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
            raise SystemExit(0 if found else 1)
        sys.stdout.write("\n".join(f"{word}\t{text}" if text else word for word, text in found))
    else:
        return False
    return True


def _asked(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the words for the command line of zsh or fish."""
    typed = environment.get("_TYPER_COMPLETE_ARGS", "")
    before = _split(typed)[1:]
    begun = before.pop() if before and not typed.endswith(" ") else ""
    return candidates(before, begun, environment)


def _split(text: str) -> list[str]:
    """Return the words of a command line, whose last quote may be open."""
    words = re.findall(r"""(?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"?|'[^']*'?)+""", text)
    return [re.sub(r"""\\(.)|["']""", r"\1", word) for word in words]


def _for_zsh(found: Sequence[tuple[str, str]]) -> str:
    if not found:
        return "_files"
    words = "\n".join(f'"{_quoted(word)}":"{_quoted(text)}"' if text else f'"{_quoted(word)}"' for word, text in found)
    return f"_arguments '*: :(({words}))'"


def _quoted(text: str) -> str:
    for special, quoted in (('"', '""'), ("'", "''"), ("$", "\\$"), ("`", "\\`"), (":", r"\\:")):
        text = text.replace(special, quoted)
    return text
