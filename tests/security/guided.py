"""Hostile bytes for every decoder, guided by coverage: ``python -m tests.security.guided <decoder>``.

Needs `atheris`, which is not among the development tools: ``pip install atheris``. Options of libFuzzer follow the name
of the decoder, for example ``-max_total_time=60``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def main() -> int:
    """Fuzz one decoder in this process."""
    try:
        guide: Any = import_module("atheris")
    except ImportError:
        print("atheris is not installed: .venv/bin/pip install atheris", file=sys.stderr)  # noqa: T201 - the output of a program
        return 1
    with guide.instrument_imports(include=["aiozkqueue"]):
        decoders = import_module("tests.security.decoders")
    name = sys.argv.pop(1)
    guide.Setup(sys.argv, decoders.typed(decoders.DECODERS[name]))
    guide.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
