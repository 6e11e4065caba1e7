"""The OpenAPI document is correct: it describes each response, and no response is a 5xx."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import aiozkqueue as zq
from aiozkqueue.http import Keys
from aiozkqueue.session.internals import core_of
from tests.http.test_killed_servers import process

if TYPE_CHECKING:
    from schemathesis import Case

EXAMPLES = 25
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("kind", ["queue", pytest.param("dedupq", marks=pytest.mark.slow)])
async def test_every_request_gets_a_response_that_the_document_describes(
    zookeeper: str, queue_root: str, kind: str, mode: str
) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        key = await Keys(core_of(session)).create("operator", ["queue|*|*"])
    async with process(zookeeper, queue_root) as (url, server):
        await asyncio.to_thread(_attack, url, key, kind, mode)
        assert server.poll() is None


def _attack(url: str, key: str, kind: str, mode: str) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    modes = {"positive": schemathesis.GenerationMode.POSITIVE, "negative": schemathesis.GenerationMode.NEGATIVE}
    attacked = 0
    for result in schema.include(path_regex=f"^/{kind}/").get_all_operations():
        operation = result.ok()  # type: ignore[union-attr]
        attacked += 1

        every = list[Any](HealthCheck)

        # The same examples in every run, so that the result does not depend on the run.
        @settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=every)
        @given(case=operation.as_strategy(generation_mode=modes[mode]))
        def attack(case: Case[Any]) -> None:
            case.query.pop("wait", None)  # the server would wait as requested
            case.call_and_validate(base_url=url, headers={"X-BV-API-Key": key}, checks=CHECKS, timeout=60)

        attack()
    assert attacked == 13
