"""Requests that are sent again after a lost connection until the server answers: over `interface.ZooKeeper`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from aiozkqueue.zookeeper.errors import ConnectionLossError, MultiError, SessionExpiredError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.zookeeper.interface import ZooKeeper

T = TypeVar("T")


async def until_answered(zookeeper: ZooKeeper, send: Callable[[], Awaitable[T]], *, generation: int | None = None) -> T:
    """Call ``send`` again after each lost connection until it returns or is refused.

    For changes whose second copy is refused or changes nothing: an earlier copy may have been applied and only its
    reply lost. ``MultiError.in_doubt`` says that this is possible. Without a generation, any session will do.

    Raises: as ``send``, except ConnectionLossError; SessionExpiredError only with a generation.
    """
    in_doubt = False
    while True:
        try:
            return await send()
        except MultiError as refusal:
            refusal.in_doubt = in_doubt
            raise
        except ConnectionLossError:
            in_doubt = True
        except SessionExpiredError:
            if generation is not None:
                raise
            in_doubt = True
        await zookeeper.wait_connected(generation=generation)
