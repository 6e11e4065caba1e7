"""The names of handlers in the log."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.session.middleware import name_of

if TYPE_CHECKING:
    import aiozkqueue as zq


async def handle(_: zq.Delivery[bytes]) -> None: ...


class Shop:
    async def bill(self, _: zq.Delivery[bytes]) -> None: ...

    async def __call__(self, _: zq.Delivery[bytes]) -> None: ...


@pytest.mark.parametrize(
    ("function", "name"),
    [(handle, "handle"), (partial(partial(handle)), "handle"), (Shop().bill, "Shop.bill"), (Shop(), "Shop")],
    ids=["function", "partial", "method", "object"],
)
def test_middleware_sees_a_handler_under_its_module_and_name(function: object, name: str) -> None:
    assert name_of(function) == f"{__name__}.{name}"
