"""The options of listeners, and their checks before a listener is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from aiozkqueue.arguments import is_choice, positive, required_seconds, seconds
from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import check_condition, check_queue_name
from aiozkqueue.rates.pace import Rates

from .middleware import check_middleware

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiozkqueue.arguments import Seconds
    from aiozkqueue.layout import Condition, Policy

    from .middleware import Middleware


#: The limits of a rate, calls in a second: one in about twelve days, and more than one process can make.
SLOWEST, FASTEST = 1e-6, 1e6
#: The most messages of a batch: one commit removes all of them.
LARGEST_BATCH = 1000


class ListenerOptions(TypedDict, total=False):
    """The options of a listener. Each has a default. An option out of range raises `InvalidOptionError`."""

    concurrency: int
    """The maximum number of handlers at a time; 1 by default."""
    policy: Policy | None
    """The redelivery policy, stored with the queue if it has none yet."""
    timeout: Seconds | None
    """The time limit of a handler with its middleware, seconds; none by default. The handler is then cancelled, and the
    delivery fails with a `TimeoutError`.
    """
    drain_timeout: Seconds | None
    """How long handlers may take to finish after a stop, seconds; 25 by default. None: no limit."""
    on_lost: Literal["finish", "cancel"]
    """With ``"cancel"``, a handler is cancelled when its claim is known to be lost; by default it finishes."""
    filters: Condition | None
    """Take only messages whose tags match."""

    rate: float | None
    """The maximum number of handler calls that begin in a second, in all sessions; no limit by default. The limit is
    kept in ZooKeeper. Up to a quarter of a second's calls may begin early or late.
    """
    rate_name: str | None
    """The name of the limit ``rate``: all listeners with this name share it. By default the name of the queue, or
    a name derived from the path of another program's queue.
    """
    per_process_rate: float | None
    """The maximum number of calls of the handler that begin in a second in this listener; no limit by default."""
    middleware: Sequence[Middleware]
    """Each ``async def around(delivery, call_next)`` is called around the handler, the first outermost. An error it
    raises counts as the handler's. If it returns without awaiting ``call_next()``, the delivery is committed without a
    call of the handler. It may settle the delivery. A listener with ``batch`` takes none.
    """


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Checked options."""

    concurrency: int
    policy: Policy | None
    drain_timeout: float | None
    on_lost: Literal["finish", "cancel"]
    condition: Condition | None
    middleware: Sequence[Middleware]
    timeout: float | None
    rates: Rates | None


@dataclass(frozen=True, slots=True)
class BatchSize:
    """How many messages a batch has at most, and how long it waits for them."""

    limit: int
    wait: float


def check_batch(batch: int | None, wait: Seconds, options: Mapping[str, Any]) -> BatchSize | None:
    """Check the options of batches; return None if a handler takes single messages. Raises: InvalidOptionError."""
    longest = required_seconds(wait, "batch_wait")
    if batch is None:
        return None
    if options.get("middleware"):
        msg = "a middleware is called with one delivery, so a listener with batch= takes none; call it in the handler"
        raise InvalidOptionError(msg)
    if positive(batch, "batch") > LARGEST_BATCH:
        msg = f"batch={batch}: one commit removes up to {LARGEST_BATCH} messages; give a smaller batch"
        raise InvalidOptionError(msg)
    return BatchSize(batch, longest)


def check_listener_options(options: Mapping[str, Any]) -> ListenerSettings:
    """Check the options of a listener. Raises: InvalidOptionError."""
    for option in options:
        if option not in ListenerOptions.__annotations__:
            known = ", ".join(ListenerOptions.__annotations__)
            msg = f"a listener has no option {option!r}; the options are {known}"
            raise InvalidOptionError(msg)
    middleware = options.get("middleware", ())
    check_middleware(middleware)
    on_lost = options.get("on_lost", "finish")
    if not is_choice(on_lost, "finish", "cancel"):
        msg = f"on_lost={on_lost!r}: give 'finish' or 'cancel'"
        raise InvalidOptionError(msg)
    return ListenerSettings(
        concurrency=positive(options.get("concurrency", 1), "concurrency"),
        policy=options.get("policy"),
        drain_timeout=seconds(options.get("drain_timeout", 25), "drain_timeout"),
        on_lost=on_lost,
        condition=check_condition(options.get("filters")),
        middleware=middleware,
        timeout=seconds(options.get("timeout"), "timeout"),
        rates=_check_rates(options),
    )


def _check_rates(options: Mapping[str, Any]) -> Rates | None:
    own, shared = (_check_rate(options.get(option), option) for option in ("per_process_rate", "rate"))
    name = options.get("rate_name")
    if name is not None:
        name = check_queue_name(name, "rate")
        if shared is None:
            msg = f"rate_name={name!r} names a limit that is not given; give rate= too"
            raise InvalidOptionError(msg)
    return None if own is None and shared is None else Rates(own, shared, name)


def _check_rate(value: object, option: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not SLOWEST <= value <= FASTEST:
        msg = f"{option}={value!r}: give the calls in a second, a number from {SLOWEST:g} to {FASTEST:g}"
        raise InvalidOptionError(msg)
    return float(value)
