"""The exceptions inside of exception groups, which `asyncio.TaskGroup` and anyio's raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast, overload

if TYPE_CHECKING:
    from collections.abc import Iterator


def first_of(error: BaseException) -> BaseException:
    """Return the first exception of a group, also of a nested one; or the error itself if it is no group."""
    return next(leaves_of(error))


@overload
def only_of(error: Exception) -> Exception: ...
@overload
def only_of(error: BaseException) -> BaseException: ...
def only_of(error: BaseException) -> BaseException:
    """Return the exception of a group that has only one, also of a nested one; or the error itself."""
    leaves = leaves_of(error)
    first = next(leaves)
    return error if next(leaves, None) is not None else first


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions of a group and of the groups in it, or the error itself if it is no group."""
    if isinstance(error, BaseExceptionGroup):
        for part in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves_of(part)
    else:
        yield error
