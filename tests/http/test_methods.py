"""HEAD, OPTIONS, and the headers of every response."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.http.conftest import Service

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize(
    "path", ["/ping", "/live", "/ready", "/healthcheck", "/sign-in", "/queue/1/q/size", "/queue/1/q/peek", "/metrics"]
)
async def test_head_gets_the_answer_of_get_without_a_body(service: Service, path: str) -> None:
    got, headed = await service.get(path), await service.http.head(path)
    assert (headed.status_code, headed.content) == (got.status_code, b"") == (200, b"")
    assert headed.headers["content-type"] == got.headers["content-type"]
    assert (await service.get(path)).status_code == 200, "the connection stays open"


async def test_head_of_a_poll_claims_nothing_and_does_not_wait(service: Service) -> None:
    await service.post("/queue/1/q/send", json=1)
    assert (await service.http.head("/queue/1/q/poll?ttl=3600&wait=60")).status_code == 200
    assert (await service.get("/queue/1/q/claimcount")).json() == 0
    assert len(await service.poll("q")) == 1


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/ping", "GET, HEAD, OPTIONS"),
        ("/queue/1/q/send", "OPTIONS, POST"),
        ("/dedupq/1/q/poll", "GET, HEAD, OPTIONS"),
        ("/queue/1/q", "DELETE, OPTIONS"),
        ("/sign-in", "GET, HEAD, OPTIONS, POST"),
        ("/metrics", "GET, HEAD, OPTIONS"),
    ],
)
async def test_options_lists_the_methods_of_a_path(service: Service, path: str, allowed: str) -> None:
    service.http.headers.pop("X-BV-API-Key")
    answer = await service.http.options(path)
    assert (answer.status_code, answer.headers["Allow"], answer.content) == (204, allowed, b"")
    assert not [name for name in answer.headers if name.startswith("access-control")]
    refused = await service.http.put(path)
    assert (refused.status_code, refused.headers["Allow"]) == (405, allowed)


async def test_options_of_an_unknown_path_is_not_found(service: Service) -> None:
    assert (await service.http.options("/queue/1/q/nothing")).status_code == 404


@pytest.mark.parametrize(
    "path", ["/ping", "/queue/1/q/poll", "/queue/1/q/nothing", "/queue/1/q/poll?ttl=x", "/metrics"]
)
async def test_every_response_forbids_sniffing_and_caching(service: Service, path: str) -> None:
    headers = (await service.get(path)).headers
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")


async def test_an_extra_slash_is_not_found_and_not_redirected(service: Service) -> None:
    answer = await service.get("/queue/1/q/size/", headers={"Host": "evil.example"})
    assert answer.status_code == 404
    assert "Location" not in answer.headers
