"""The errors of the service, in the forms that EmoDB's clients know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import JSONResponse, PlainTextResponse

if TYPE_CHECKING:
    from starlette.responses import Response

EXCEPTION_HEADER: Final = "X-BV-Exception"
ILLEGAL_ARGUMENT: Final = "java.lang.IllegalArgumentException"
UNAUTHORIZED: Final = "com.bazaarvoice.emodb.common.api.UnauthorizedException"
UNKNOWN_MOVE: Final = "com.bazaarvoice.emodb.queue.api.UnknownMoveException"

#: Seconds after which a client should try again when ZooKeeper does not answer.
RETRY_AFTER: Final = 5


class ProblemError(Exception):
    """A refused request; `response` is sent to its client."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


def not_a_number(text: str) -> ProblemError:
    """A parameter is not an integer."""
    return ProblemError(PlainTextResponse(f'"{text}" is not a number.', 400))


def illegal(message: str) -> ProblemError:
    """A parameter is out of range, or a name or message is invalid."""
    return ProblemError(PlainTextResponse(message, 400, {EXCEPTION_HEADER: ILLEGAL_ARGUMENT}))


def malformed(message: str) -> ProblemError:
    """A body is not JSON or has the wrong structure, or a parameter is missing."""
    return ProblemError(JSONResponse({"message": message}, 400))


def empty() -> ProblemError:
    """The body is missing."""
    return ProblemError(JSONResponse({"errors": []}, 422))


def unsupported() -> ProblemError:
    """The content type of a body is not JSON."""
    return ProblemError(JSONResponse({"message": "Content-Type must be application/json"}, 415))


def unsupported_encoding() -> ProblemError:
    """The encoding of a body is not supported."""
    body = {"message": "Content-Encoding may be gzip or identity"}
    return ProblemError(JSONResponse(body, 415, {"Accept-Encoding": "gzip"}))


def too_large(limit: int) -> ProblemError:
    """A body, or a message in it, is too large."""
    text = f"the body of a request, or a message in it, may have at most {limit} bytes"
    return ProblemError(JSONResponse({"message": text}, 413))


def too_slow() -> ProblemError:
    """A body did not arrive in time."""
    return ProblemError(JSONResponse({"message": "the body of the request did not arrive in time"}, 408))


def too_often(seconds: int) -> ProblemError:
    """The key has exceeded its rate of requests."""
    return ProblemError(JSONResponse({"message": "too many requests"}, 429, {"Retry-After": str(seconds)}))


def unauthorized() -> ProblemError:
    """The key is missing or unknown, or does not allow this."""
    return ProblemError(JSONResponse({"reason": "not authorized"}, 403, {EXCEPTION_HEADER: UNAUTHORIZED}))


def forbidden_queue(name: str) -> ProblemError:
    """A batch contains a queue that the key may not put to."""
    return ProblemError(JSONResponse({"queue": name}, 403))


def unknown_move(reference: str) -> ProblemError:
    """The move does not exist."""
    body: dict[str, str | list[str]] = {"id": reference, "message": f"Unknown move: {reference}", "suppressed": []}
    return ProblemError(JSONResponse(body, 404, {EXCEPTION_HEADER: UNKNOWN_MOVE}))


def unavailable(message: str = "ZooKeeper does not answer") -> ProblemError:
    """The request cannot be served now and should be repeated."""
    return ProblemError(JSONResponse({"message": message}, 503, {"Retry-After": str(RETRY_AFTER)}))


def conflict(message: str) -> ProblemError:
    """The queue's configuration does not allow the request."""
    return ProblemError(JSONResponse({"message": message}, 409))


def too_many(limit: int) -> ProblemError:
    """The request has too many messages."""
    return ProblemError(JSONResponse({"message": f"a request may have at most {limit} messages"}, 413))
