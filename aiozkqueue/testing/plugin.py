"""For installations whose entry point is of before: the plugin is `pytest_aiozkqueue`."""

from __future__ import annotations

import pytest_aiozkqueue

globals().update(vars(pytest_aiozkqueue))
