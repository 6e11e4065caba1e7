"""A slow machine must not fail these tests: the timeout on each is what bounds them."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("queue", deadline=None)
settings.load_profile("queue")
