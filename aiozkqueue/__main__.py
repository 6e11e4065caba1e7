"""`python -m aiozkqueue`: the same as `aiozkqueue`."""

from __future__ import annotations

from aiozkqueue.cli import main

main()
