"""What a request asks for, with the refusals of EmoDB's service. Pure but for reading a body."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Final, NoReturn
from urllib.parse import unquote

from starlette.requests import ClientDisconnect

from . import problems
from .names import is_name

if TYPE_CHECKING:
    from pydantic import JsonValue
    from starlette.datastructures import QueryParams
    from starlette.requests import Request
    from starlette.types import Scope

#: Bytes that a message may have, as it is stored: EmoDB's limit.
MESSAGE_LIMIT: Final = 30_720
#: Seconds in which a body must have come.
BODY_PATIENCE: Final = 30.0
MOST_TTL: Final = 3600
MOST_MESSAGES: Final = 1000
MOST_WAIT: Final = 60

#: How deep arrays and objects may lie in each other: far from what this or another JSON reader cannot follow.
MOST_NESTED: Final = 400

_SLASH: Final = re.compile(r"%2F", re.IGNORECASE)
_INTEGER: Final = re.compile(r"[+-]?0*[0-9]{1,19}")
_LARGEST: Final = 2**63
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_BRACKET: Final = re.compile(rb"[\[\]{}]")
_SHOWN: Final = 100


def with_slashes_kept(scope: Scope) -> Scope:
    """Return a request whose path is divided where its client divided it.

    A slash within a name is sent as ``%2F``. EmoDB's service takes the path apart before it decodes the parts, so there
    such a name is refused as a name; ASGI servers decode first, and it would be another path, which there is not.
    """
    sent: bytes = scope.get("raw_path") or b""
    if b"%2F" not in sent.upper() or unquote(path := sent.decode("ascii", "replace")) != scope["path"]:
        return scope
    return {**scope, "path": unquote(_SLASH.sub("%252F", path))}


def integer(query: QueryParams, name: str, default: int) -> int:
    """Return a parameter that is an integer, or the default when it is not given. Raises: ProblemError."""
    number = optional_integer(query, name)
    return default if number is None else number


def optional_integer(query: QueryParams, name: str) -> int | None:
    """Return a parameter that is an integer, if it is given. Raises: ProblemError."""
    text = query.get(name)
    if text is None:
        return None
    if not _INTEGER.fullmatch(text) or not -_LARGEST <= (number := int(text)) < _LARGEST:
        raise problems.not_a_number(text[:_SHOWN])
    return number


def check_ttl(ttl: int) -> int:
    """Refuse a claim's length that is out of range. Raises: ProblemError."""
    if ttl < 0:
        raise problems.illegal("ClaimTtl must be >=0")
    if ttl > MOST_TTL:
        raise problems.illegal("ClaimTtl must be <=1 hour")
    return ttl


def check_limit(limit: int, most: int | None = MOST_MESSAGES) -> int:
    """Refuse a number of messages that is out of range. Raises: ProblemError."""
    if limit <= 0:
        raise problems.illegal("Limit must be >0")
    if most is not None and limit > most:
        raise problems.illegal(f"Limit must be <={most}")
    return limit


def check_wait(wait: int) -> int:
    """Refuse a time to wait for messages that is out of range. Raises: ProblemError."""
    if not 0 <= wait <= MOST_WAIT:
        raise problems.illegal(f"Wait must be >=0 and <={MOST_WAIT} seconds")
    return wait


def asked_to_wait(request: Request) -> int:
    """Seconds that a client asks to wait for messages, if it asks rightly: what is wrong is refused elsewhere."""
    try:
        return check_wait(integer(request.query_params, "wait", 0))
    except problems.ProblemError:
        return 0


def check_name(name: str) -> str:
    """Refuse what cannot name a queue. Raises: ProblemError."""
    if not is_name(name):
        raise problems.illegal(
            "Queue name must be a lowercase ASCII string between 1 and 255 characters in length. Allowed punctuation "
            "characters are -.:@_ and the queue name may not start with a single underscore character. An example of "
            "a valid queue name would be 'polloi:provision'."
        )
    return name


def check_json_type(request: Request) -> None:
    """Refuse a body that is not said to be JSON. Raises: ProblemError."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise problems.unsupported()


async def body(request: Request, limit: int) -> bytes:
    """Read a body of at most ``limit`` bytes. Raises: ProblemError."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 18 or int(length) > limit):  # noqa: PLR2004 - more digits than any size
        raise problems.too_large(limit)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_PATIENCE):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise problems.too_large(limit)
                chunks.append(chunk)
    except TimeoutError:
        raise problems.too_slow() from None
    except ClientDisconnect:
        raise problems.malformed("the request's body ended too early") from None
    if not size:
        raise problems.empty()
    return b"".join(chunks)


def parse(data: bytes) -> JsonValue:
    """Read JSON. Raises: ProblemError."""
    if _nesting(data) > MOST_NESTED:
        raise problems.malformed(f"Unable to process JSON: it is nested more than {MOST_NESTED} deep")
    try:
        value: JsonValue = json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise problems.malformed(f"Unable to process JSON: {str(error)[:_SHOWN]}") from None
    return value


def message(value: JsonValue) -> bytes:
    """Return a message as it is stored: compact JSON. Raises: ProblemError: it is too large."""
    try:
        data = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise problems.malformed(f"Unable to process JSON: {str(error)[:_SHOWN]}") from None
    if len(data) > MESSAGE_LIMIT:
        raise problems.illegal(
            f"Message size ({len(data)}) is greater than the maximum allowed ({MESSAGE_LIMIT}) message size"
        )
    return data


def array(value: JsonValue) -> list[JsonValue]:
    """Return what must be an array. Raises: ProblemError."""
    if not isinstance(value, list):
        raise problems.malformed("Unable to process JSON: an array is needed")
    return value


def texts(value: JsonValue) -> list[str]:
    """Return what must be an array of strings. Raises: ProblemError."""
    found = [one for one in array(value) if isinstance(one, str)]
    if not isinstance(value, list) or len(found) != len(value):
        raise problems.malformed("Unable to process JSON: an array of strings is needed")
    return found


def arrays(value: JsonValue) -> dict[str, list[JsonValue]]:
    """Return what must be an object of arrays. Raises: ProblemError."""
    if not isinstance(value, dict):
        raise problems.malformed("Unable to process JSON: an object is needed")
    return {name: array(one) for name, one in value.items()}


def _nesting(data: bytes) -> int:
    """How deep arrays and objects lie in each other; counted only where there are enough of them to matter."""
    if data.count(b"[") + data.count(b"{") <= MOST_NESTED:
        return 0
    depth = deepest = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", data)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _refuse(text: str) -> NoReturn:
    msg = f"{text} is not JSON"
    raise ValueError(msg)
