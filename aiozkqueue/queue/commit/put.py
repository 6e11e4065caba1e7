"""Messages before they are sent: one put, or many puts without options."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final, overload

from aiozkqueue.layout import plain_prefix, with_field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiozkqueue.queue.state.queue_state import QueueState

    from .put_plan import PutPlan


class Put(NamedTuple):
    """One item to create. Its id is known before it is sent."""

    state: QueueState
    id: str
    prefix: str
    """The name of the item without its sequence number, which the server appends."""
    data: bytes
    plan: PutPlan | None = None
    """The additions to the create; None: the put has none."""

    def with_field(self, field: str) -> Put:
        """Return the put with a field in its item's name, before the id."""
        return new_put((self.state, self.id, with_field(self.prefix, field), self.data, self.plan))


#: Equal to the class itself, but implemented in C.
new_put: Callable[[tuple[QueueState, str, str, bytes, PutPlan | None]], Put] = partial(
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]
    Put,
)


@final
class PlainPuts(Sequence[Put]):
    """Puts to one queue without options, as arrays. A put is made only when it is asked for.

    ``bodies`` are the items' bytes, and ``batch`` is the `batch_field` of a pending batch that they belong to. Use
    ``type(puts) is PlainPuts``: `isinstance` with an abstract base class takes a call of Python for each put.
    """

    __slots__ = ("batch", "bodies", "ids", "state")

    def __init__(self, state: QueueState, ids: list[str], bodies: list[bytes], batch: str = "") -> None:
        self.state = state
        self.ids = ids
        self.bodies = bodies
        self.batch = batch

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Put: ...
    @overload
    def __getitem__(self, index: slice) -> PlainPuts: ...
    def __getitem__(self, index: int | slice) -> Put | PlainPuts:
        if isinstance(index, slice):
            return PlainPuts(self.state, self.ids[index], self.bodies[index], self.batch)
        message_id = self.ids[index]
        return new_put((self.state, message_id, plain_prefix(message_id, self.batch), self.bodies[index], None))

    def __iter__(self) -> Iterator[Put]:
        prefixes = [plain_prefix(message_id, self.batch) for message_id in self.ids]
        return map(new_put, zip(repeat(self.state), self.ids, prefixes, self.bodies, repeat(None)))

    def __delitem__(self, index: slice) -> None:
        del self.ids[index]
        del self.bodies[index]

    def extend(self, more: PlainPuts) -> None:
        """Append puts to the same queue and of the same batch."""
        self.ids += more.ids
        self.bodies += more.bodies


PutList: TypeAlias = list[Put] | PlainPuts


def columns_of(puts: Sequence[Put]) -> tuple[Sequence[str], Sequence[bytes]]:
    """Return the id of each put, and the bytes of each item."""
    if type(puts) is PlainPuts:
        return puts.ids, puts.bodies
    return [put.id for put in puts], [put.data for put in puts]
