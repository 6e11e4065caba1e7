"""In every public method, a value of a wrong type raises an error of the package that names the argument."""

from __future__ import annotations

import asyncio
import inspect
import logging
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.admin import QueueAdmin
from aiozkqueue.queue.options import PutOptions
from aiozkqueue.schedule import NotificationQueue
from aiozkqueue.schedule.jobs import JobOptions
from aiozkqueue.testing.simulator import run_virtual, simulated
from tests.simulation import dialects_subjects, features_subjects
from tests.simulation.bundles_subjects import BundledQueue
from tests.simulation.matrix import prepare
from tests.simulation.subjects import ARGUMENTS, SUBJECTS, subject_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import ModuleType

    from tests.simulation.features_subjects import Ready

    Method = tuple[type | ModuleType, str, str]


class Array:
    """As an array of numpy: a comparison has no truth value."""

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]  # as numpy's


WRONG: tuple[object, ...] = (None, 5, b"x", [object()], {5: 5}, -1.5, 10**400, Array())
#: The options of methods that accept options, by their annotation.
OPTIONS: dict[str, Collection[str]] = {
    "Unpack[PutOptions]": PutOptions.__annotations__,
    "Unpack[JobOptions]": JobOptions.__annotations__,
}
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
#: Classes whose objects in these tests have different methods from those of the package.
REPLACED = (zq.App, BundledQueue)
#: These need a server.
LEFT_OUT = ((zq, "connect"),)
#: Ids, names and keys, for which only a str is valid, and None is not a default.
TEXTS: list[Method] = [
    (zq.QueueSession, "outcome", "transaction_id"),
    (zq.Queue, "state", "message_id"),
    (QueueAdmin, "discard_unfinished", "writer"),
    (QueueAdmin, "unpin", "name"),
    (NotificationQueue, "remove", "notification_id"),
    (NotificationQueue, "update", "notification_id"),
    (zq.CuratorQueue, "remove", "key"),
]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def parameters() -> Iterator[Method]:
    """Return each parameter of each public method."""
    for kind in SUBJECTS:
        for name, member in inspect.getmembers(kind, inspect.isfunction):
            inherited = any(getattr(base, name, None) is member for base in getattr(kind, "__bases__", ()))
            if name.startswith("_") or inherited or kind in REPLACED or (kind, name) in LEFT_OUT:
                continue
            for parameter in inspect.signature(member).parameters.values():
                if parameter.kind is parameter.VAR_KEYWORD:
                    yield from ((kind, name, option) for option in OPTIONS.get(parameter.annotation, ()))
                elif parameter.name != "self":
                    yield kind, name, parameter.name


def arguments(ready: Ready, method: Callable[..., Any], wrong: str, value: object) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments of which all but one are valid."""
    positional = list[Any]()
    named = {} if wrong in inspect.signature(method).parameters else {wrong: value}
    special = {**features_subjects.IN, **dialects_subjects.IN}.get(method.__qualname__, {})
    for name, parameter in inspect.signature(method).parameters.items():
        if name == wrong and parameter.kind is parameter.VAR_POSITIONAL:
            positional.append(value)
        elif name == wrong:
            named[name] = value
        elif name == "signals" or (parameter.default is parameter.empty and parameter.kind not in VARIABLE):
            named[name] = special[name] if name in special else OTHERS[name](ready)
    return positional, named


async def ignore(_: object) -> None:
    """A handler."""


#: The arguments of parameters that `tests.simulation.subjects` does not have, because no coroutine has them.
OTHERS: dict[str, Callable[[Ready], Any]] = {
    **ARGUMENTS,
    "handler": lambda _: ignore,
    "callback": lambda _: ignore,
    "path": lambda _: "/theirs",
    "message": lambda ready: ready.extras["message"],
}


def errors_of(kind: type | ModuleType, name: str, wrong: str) -> list[tuple[object, Exception | None]]:
    """Call a method with each wrong value of one argument; return the values, each with its error.

    A call that is refused before it has sent a request changes nothing, so the next call uses the same session. After
    any other call, a new ensemble is prepared.
    """
    errors: list[tuple[object, Exception | None]] = []

    async def main() -> None:
        async with simulated() as cluster:
            await prepare(cluster)
            async with cluster.connect() as session, subject_of(kind, name)(session) as ready:
                method = getattr(ready.subject, name)
                refused = True
                while refused and len(errors) < len(WRONG):
                    value, arrivals = WRONG[len(errors)], cluster.ensemble.arrivals
                    error = await error_of(method, *arguments(ready, method, wrong, value))
                    errors.append((value, error))
                    await asyncio.sleep(1)  # for requests that are sent without waiting for their replies
                    refused = isinstance(error, zq.QueueError) and cluster.ensemble.arrivals == arrivals

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while len(errors) < len(WRONG):
            run_virtual(main)
    return errors


async def error_of(method: Callable[..., Any], positional: list[Any], named: dict[str, Any]) -> Exception | None:
    """Call a method and wait for its first result; return the error."""
    try:
        async with asyncio.timeout(30):
            result = method(*positional, **named)
            if inspect.isasyncgen(result):
                await anext(result, None)
            elif inspect.isawaitable(result):
                await result
    except Exception as error:  # noqa: BLE001 - the test checks any error
        return error
    return None


@pytest.mark.parametrize("method", [*parameters()], ids=lambda method: f"{method[0].__name__}.{method[1]}-{method[2]}")
def test_a_value_of_a_wrong_type_raises_no_error_of_python(method: Method) -> None:
    errors = errors_of(*method)
    assert [(value, error) for value, error in errors if not isinstance(error, zq.QueueError | None)] == []


@pytest.mark.parametrize("method", TEXTS, ids=lambda method: f"{method[0].__name__}.{method[1]}-{method[2]}")
def test_an_id_that_is_not_a_text_is_refused_with_the_name_of_the_argument(method: Method) -> None:
    for _, error in errors_of(*method):
        assert isinstance(error, zq.InvalidOptionError)
        assert method[2] in str(error)
