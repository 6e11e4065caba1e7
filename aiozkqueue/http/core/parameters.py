"""The parameters of a request, checked with the errors of EmoDB's service. Pure."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from . import problems
from .names import is_name

if TYPE_CHECKING:
    from pydantic import JsonValue
    from starlette.datastructures import QueryParams
    from starlette.requests import Request
    from starlette.types import Scope

#: Maximum size of a stored message, bytes: EmoDB's limit.
MESSAGE_LIMIT: Final = 30_720
#: Seconds for which a server waits for all parts of a body.
BODY_TIMEOUT: Final = 30.0
MOST_TTL: Final = 3600
MOST_MESSAGES: Final = 1000
MOST_WAIT: Final = 60

_SLASH: Final = re.compile(r"%2F", re.IGNORECASE)
_INTEGER: Final = re.compile(r"[+-]?0*[0-9]{1,19}")
_LARGEST: Final = 2**63
_SHOWN: Final = 100


def with_slashes_kept(scope: Scope) -> Scope:
    """Return a request whose path is split where its client split it.

    A slash within a name is sent as ``%2F``. EmoDB's service splits the path before it decodes the parts, and refuses
    such a name as invalid. ASGI servers decode first, so the request would have another path, which does not exist.
    """
    sent: bytes = scope.get("raw_path") or b""
    if b"%2F" not in sent.upper() or unquote(path := sent.decode("ascii", "replace")) != scope["path"]:
        return scope
    return {**scope, "path": unquote(_SLASH.sub("%252F", path))}


def integer(query: QueryParams, name: str, default: int) -> int:
    """Return an integer parameter, or the default if it is missing. Raises: ProblemError."""
    number = optional_integer(query, name)
    return default if number is None else number


def optional_integer(query: QueryParams, name: str) -> int | None:
    """Return an integer parameter, or None if it is missing. Raises: ProblemError."""
    text = query.get(name)
    if text is None:
        return None
    if not _INTEGER.fullmatch(text) or not -_LARGEST <= (number := int(text)) < _LARGEST:
        raise problems.not_a_number(text[:_SHOWN])
    return number


def check_ttl(ttl: int) -> int:
    """Refuse a duration of a claim that is out of range. Raises: ProblemError."""
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
    """Refuse a waiting time that is out of range. Raises: ProblemError."""
    if not 0 <= wait <= MOST_WAIT:
        raise problems.illegal(f"Wait must be >=0 and <={MOST_WAIT} seconds")
    return wait


def asked_to_wait(request: Request) -> int:
    """Return the seconds that a client asks to wait, or 0 if the value is invalid, which is refused elsewhere."""
    try:
        return check_wait(integer(request.query_params, "wait", 0))
    except problems.ProblemError:
        return 0


def check_name(name: str) -> str:
    """Refuse an invalid name of a queue. Raises: ProblemError."""
    if not is_name(name):
        raise problems.illegal(
            "Queue name must be a lowercase ASCII string between 1 and 255 characters in length. Allowed punctuation "
            "characters are -.:@_ and the queue name may not start with a single underscore character. An example of "
            "a valid queue name would be 'polloi:provision'."
        )
    return name


def check_json_type(request: Request) -> None:
    """Refuse a body that is not declared as JSON. Raises: ProblemError."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise problems.unsupported()


def message(value: JsonValue) -> bytes:
    """Return a message in its stored form, compact JSON. Raises: ProblemError: it is too large."""
    try:
        data = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError:
        raise problems.malformed("Unable to process JSON: a string contains half of a surrogate pair") from None
    except ValueError:
        raise problems.malformed("Unable to process JSON: a number is too large") from None
    except RecursionError as error:
        raise problems.malformed(f"Unable to process JSON: {str(error)[:_SHOWN]}") from None
    if len(data) > MESSAGE_LIMIT:
        raise problems.illegal(
            f"Message size ({len(data)}) is greater than the maximum allowed ({MESSAGE_LIMIT}) message size"
        )
    return data
