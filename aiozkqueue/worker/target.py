"""``module:name``: an application, a function of the session that makes services, or a handler of deliveries."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast, get_args, get_origin

from aiozkqueue import App, Delivery, InvalidOptionError, QueueSession

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from aiozkqueue.session.background import Service


def load(target: str) -> App | Callable[..., Any]:
    """Import the object ``module:name``; errors of the module itself are raised unchanged.

    Raises:
        InvalidOptionError: it names neither an application nor a callable.
    """
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        msg = f"{target!r}: give module:name, such as shop.workers:listener"
        raise InvalidOptionError(msg)
    try:
        found: object = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # a module that it imports is missing
        remedy = "modules are searched from the current directory"
        if module_name.endswith(".py"):
            remedy = f"give the module, not its file: {module_name.removesuffix('.py').replace('/', '.')}:{name}"
        msg = f"{target!r}: there is no module {error.name!r}; {remedy}"
        raise InvalidOptionError(msg) from error
    for part in name.split("."):
        if not hasattr(found, part):
            msg = f"{target!r}: module {module_name!r} has no {name!r}"
            raise InvalidOptionError(msg)
        found = getattr(found, part)
    if isinstance(found, App):
        return found
    if not callable(found):
        msg = (
            f"{target!r} is of type {type(found).__name__}: it must be an application, or a function of the session or "
            "of a delivery"
        )
        raise InvalidOptionError(msg)
    return found


def type_of_deliveries(handler: Callable[..., Any]) -> object:
    """Return the payload's type from the annotation ``Delivery[T]`` of a handler's argument; bytes without one.

    Raises:
        InvalidOptionError: the annotation cannot be evaluated, or the handler takes no argument, or a session.
    """
    try:
        parameters = list(inspect.signature(handler, eval_str=True).parameters.values())
    except NameError as error:
        msg = f"the annotations of {handler!r} must be importable at run time, not only for type checkers: {error}"
        raise InvalidOptionError(msg) from error
    if not parameters:
        msg = f"{handler!r} takes no argument: a handler takes a delivery"
        raise InvalidOptionError(msg)
    annotation = parameters[0].annotation
    if annotation is QueueSession:
        msg = f"{handler!r} takes a session, so it creates the listeners itself: omit --queue"
        raise InvalidOptionError(msg)
    if get_origin(annotation) is Delivery:
        (type_,) = get_args(annotation)
        return bytes if type_ is Any else type_
    return bytes


@asynccontextmanager
async def opened(factory: Callable[[QueueSession], object], session: QueueSession) -> AsyncIterator[list[Service]]:
    """Yield the services that a function of the session makes: one, several, or a context manager that yields them.

    Raises:
        InvalidOptionError: it returns something else.
    """
    product = factory(session)
    if _is_service(product):
        yield [cast("Service", product)]
    elif hasattr(product, "__aenter__"):
        async with cast("AbstractAsyncContextManager[object]", product) as entered:
            yield _services(entered)
    else:
        yield _services(product)


def _services(product: object) -> list[Service]:
    candidates = list(cast("Iterable[object]", product)) if isinstance(product, Iterable) else [product]
    for value in candidates:
        if not _is_service(value):
            if inspect.iscoroutine(value):
                value.close()
            msg = (
                f"a value of type {type(value).__name__} is not a service: return a listener or a scheduler, several, "
                "or yield them from an async context manager; for a handler, name its queue with --queue"
            )
            raise InvalidOptionError(msg)
    if not candidates:
        msg = "no service was returned: there is nothing to run"
        raise InvalidOptionError(msg)
    return cast("list[Service]", candidates)


def _is_service(product: object) -> bool:
    return all(callable(getattr(product, name, None)) for name in ("run", "stop", "abort"))
