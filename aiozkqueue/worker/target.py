"""``module:name``: an application, a function of the session that makes services, or a handler of deliveries."""

from __future__ import annotations

import inspect
import os
import sysconfig
from collections.abc import Iterable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, get_args, get_origin

from aiozkqueue import App, Delivery, InvalidOptionError, QueueError, QueueSession

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from aiozkqueue.session.background import Service

#: The folders of the code through which this command calls the user's code.
_OWN: Final = (f"{Path(__file__).parents[1]}{os.sep}", f"{sysconfig.get_path('stdlib')}{os.sep}", "<frozen ")


class UserCodeError(Exception):
    """The user's code has failed: its cause, whose traceback begins with the user's code."""


@contextmanager
def _user_code(failure: str) -> Iterator[None]:
    """Run the user's code. Raises: UserCodeError, with this text; errors of this package are raised unchanged."""
    try:
        yield
    except QueueError:
        raise
    except Exception as error:  # noqa: BLE001 - of any kind: it becomes the cause
        raise UserCodeError(f"{failure}: {type(error).__name__}: {error}") from error.with_traceback(
            _from_user_code(error.__traceback__)
        )


def _from_user_code(traceback: TracebackType | None) -> TracebackType | None:
    """Leave out the frames before the user's code; all of them if a module cannot be compiled."""
    while traceback is not None and _is_own(traceback.tb_frame.f_code.co_filename):
        traceback = traceback.tb_next
    return traceback


def _is_own(file: str) -> bool:
    return file.startswith(_OWN) and "site-packages" not in file.removeprefix(_OWN[0])


def load(target: str) -> App | Callable[..., Any]:
    """Import the object ``module:name``.

    Raises:
        InvalidOptionError: it names neither an application nor a callable.
        UserCodeError: the module cannot be imported.
        QueueError: the module raises it.
    """
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        msg = f"{target!r}: give module:name, such as shop.workers:listener"
        raise InvalidOptionError(msg)
    with _user_code(f"{target!r}: module {module_name!r} cannot be imported"):
        found = _imported(target, module_name, name)
    for part in name.split("."):
        if not hasattr(found, part):
            applications = [own for own, value in getattr(found, "__dict__", {}).items() if isinstance(value, App)]
            instead = f"; it has the application {' and '.join(map(repr, applications))}" if applications else ""
            msg = f"{target!r}: module {module_name!r} has no {name!r}{instead}"
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


def _imported(target: str, module_name: str, name: str) -> object:
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # a module that it imports is missing
        remedy = "modules are searched from the current directory"
        if module_name.endswith(".py"):
            remedy = f"give the module, not its file: {module_name.removesuffix('.py').replace('/', '.')}:{name}"
        msg = f"{target!r}: there is no module {error.name!r}; {remedy}"
        raise InvalidOptionError(msg) from error


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
        UserCodeError: it fails, or the context manager fails before it yields.
    """
    failure = "the listeners could not be created"
    async with AsyncExitStack() as stack:
        with _user_code(failure):
            product = factory(session)
        if _is_service(product):
            yield [cast("Service", product)]
        elif hasattr(product, "__aenter__"):
            with _user_code(failure):
                entered = await stack.enter_async_context(cast("AbstractAsyncContextManager[object]", product))
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
