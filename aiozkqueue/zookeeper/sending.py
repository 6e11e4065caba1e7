"""Requests that are sent again after a lost connection until the server answers: over `interface.ZooKeeper`.

This is the one loop for changes whose second copy is refused or changes nothing. Two other senders have their own loop.
The commit slot (`queue/commit/slot.py`) reads the fate of a multi in the next session, where it must not be sent again.
The claimer (`queue/claim/claimer.py`) sends a read right behind its locks, without waiting for their reply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Never, TypeVar

from aiozkqueue.zookeeper.call_limit import current_call
from aiozkqueue.zookeeper.errors import (
    ConnectionLossError,
    MultiError,
    NotConnectedError,
    SessionExpiredError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiozkqueue.zookeeper.interface import Operation, Result, ZooKeeper

T = TypeVar("T")


async def apply_until_answered(
    zookeeper: ZooKeeper,
    operations: Sequence[Operation],
    *,
    generation: int | None = None,
    applied: Callable[[MultiError], Awaitable[bool]] | None = None,
) -> list[Result]:
    """Send a multi again after each lost connection until it is applied or refused.

    Its second copy must be refused or change nothing. After a lost reply, a refusal may mean that an earlier copy was
    applied: ``applied`` finds out from the stored data. If it returns True, the results are lost, and the list is
    empty. Without it, each refusal is raised. With a generation, the multi is applied in that session or not at all.

    There is no deadline, because a caller that gives up does not take a request back: cancel the caller.

    Raises:
        MultiError: the multi was refused, and no copy is known to have been applied.
        SessionExpiredError: the session of ``generation`` has ended.
        NoAuthError, RequestTooLargeError, ClientClosedError, AuthFailedError: as `ZooKeeper.multi`.
    """

    async def in_doubt(refusal: MultiError) -> list[Result]:
        if applied is None or not await applied(refusal):
            raise refusal
        return []

    async def send() -> list[Result]:
        return await zookeeper.multi(operations, generation=generation)

    return await until_answered(zookeeper, send, generation=generation, in_doubt=in_doubt)


async def _refused(refusal: MultiError) -> Never:
    raise refusal


async def until_answered(
    zookeeper: ZooKeeper,
    send: Callable[[], Awaitable[T]],
    *,
    generation: int | None = None,
    in_doubt: Callable[[MultiError], Awaitable[T]] = _refused,
) -> T:
    """Call ``send`` again after each lost connection until it returns or is refused.

    For changes that depend on data that ``send`` reads first; see `apply_until_answered` for a fixed multi.
    ``in_doubt`` answers a refusal after a lost reply: it returns the result of the earlier copy, or raises the refusal.
    Without a generation, any session will do. The limit of the call counts the multis of ``send`` as its changes, and
    not its reads.

    Raises: as ``send``, except ConnectionLossError; SessionExpiredError only with a generation.
    """
    call = current_call.get()
    if call is None:
        return await _send_again(zookeeper, send, generation, in_doubt)
    call.changing += 1
    try:
        return await _send_again(zookeeper, send, generation, in_doubt)
    finally:
        call.changing -= 1


async def _send_again(
    zookeeper: ZooKeeper,
    send: Callable[[], Awaitable[T]],
    generation: int | None,
    in_doubt: Callable[[MultiError], Awaitable[T]],
) -> T:
    lost = False
    while True:
        try:
            return await send()
        except MultiError as refusal:
            if not lost:
                raise
            return await in_doubt(refusal)
        except ConnectionLossError as loss:
            lost = lost or not isinstance(loss, NotConnectedError)
        except SessionExpiredError:
            if generation is not None:
                raise
            lost = True
        await zookeeper.wait_connected(generation=generation)
