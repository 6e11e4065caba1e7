"""Sentry reads the bodies of requests before the service does."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest
import sentry_sdk
from sentry_sdk.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sentry_sdk.envelope import Envelope

    from tests.http.conftest import Starter

pytestmark = pytest.mark.timeout(180)

JSON = {"Content-Type": "application/json"}


class Dropped(Transport):
    """A transport that drops the events."""

    def capture_envelope(self, envelope: Envelope) -> None:
        del envelope


@pytest.fixture
def sentry() -> Iterator[None]:
    """Sentry with its default settings, which include the integration of FastAPI."""
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(dsn="https://key@sentry.example.com/1", transport=Dropped())
        yield
        sentry_sdk.get_client().close(timeout=0)
        sentry_sdk.init()


@pytest.mark.usefixtures("sentry")
async def test_bodies_are_read_with_sentry_enabled(start: Starter) -> None:
    service = await start()  # adds the routes while Sentry is active
    assert (await service.post("/queue/1/q/send", json=1)).status_code == 200
    assert (await service.post("/queue/1/q/sendbatch", json=[2, 3])).status_code == 200
    packed = gzip.compress(json.dumps([4]).encode())
    answer = await service.post("/queue/1/q/sendbatch", content=packed, headers={**JSON, "Content-Encoding": "gzip"})
    assert answer.status_code == 200
    polled = await service.poll("q", limit=10)
    assert sorted(message["payload"] for message in polled) == [1, 2, 3, 4]
    assert (await service.post("/queue/1/q/ack", json=[message["id"] for message in polled])).status_code == 200
    assert (await service.get("/queue/1/q/size")).json() == 0
