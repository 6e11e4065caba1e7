"""`python -m aiozkqueue_completion`: the same as `aiozkqueue`."""

from __future__ import annotations

from aiozkqueue_completion import main

main()
