"""What the acceptance tests share: sessions on a root of their own, as in the queue's integration tests."""

from __future__ import annotations

from tests.integration.queue.conftest import expire, locks, open_session, other, session

__all__ = ["expire", "locks", "open_session", "other", "session"]
