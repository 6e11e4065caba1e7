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
    """A request that is refused; `response` is what its client gets."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


def not_a_number(text: str) -> ProblemError:
    """A parameter that is no integer."""
    return ProblemError(PlainTextResponse(f'"{text}" is not a number.', 400))


def illegal(message: str) -> ProblemError:
    """A parameter out of its range, or a name or message that cannot be."""
    return ProblemError(PlainTextResponse(message, 400, {EXCEPTION_HEADER: ILLEGAL_ARGUMENT}))


def malformed(message: str) -> ProblemError:
    """A body that is not JSON, or not of the shape that is needed; a parameter that is missing."""
    return ProblemError(JSONResponse({"message": message}, 400))


def empty() -> ProblemError:
    """No body where one is needed."""
    return ProblemError(JSONResponse({"errors": []}, 422))


def unsupported() -> ProblemError:
    """A body without the content type JSON."""
    return ProblemError(JSONResponse({"message": "Content-Type must be application/json"}, 415))


def unsupported_encoding() -> ProblemError:
    """A body that is encoded in a way that this server cannot undo."""
    body = {"message": "Content-Encoding may be gzip or identity"}
    return ProblemError(JSONResponse(body, 415, {"Accept-Encoding": "gzip"}))


def too_large(limit: int) -> ProblemError:
    """A body, or one message of it, larger than this server takes."""
    text = f"a request's body, or one message of it, may have at most {limit} bytes here"
    return ProblemError(JSONResponse({"message": text}, 413))


def too_slow() -> ProblemError:
    """A body that did not come in time."""
    return ProblemError(JSONResponse({"message": "the request's body did not come in time"}, 408))


def too_often(seconds: int) -> ProblemError:
    """More requests than this key may make."""
    return ProblemError(JSONResponse({"message": "too many requests"}, 429, {"Retry-After": str(seconds)}))


def unauthorized() -> ProblemError:
    """A key that is missing, unknown, or may not do this."""
    return ProblemError(JSONResponse({"reason": "not authorized"}, 403, {EXCEPTION_HEADER: UNAUTHORIZED}))


def forbidden_queue(name: str) -> ProblemError:
    """A batch for several queues, one of which this key may not put to."""
    return ProblemError(JSONResponse({"queue": name}, 403))


def unknown_move(reference: str) -> ProblemError:
    """A move that does not exist."""
    body: dict[str, str | list[str]] = {"id": reference, "message": f"Unknown move: {reference}", "suppressed": []}
    return ProblemError(JSONResponse(body, 404, {EXCEPTION_HEADER: UNKNOWN_MOVE}))


def unavailable(message: str = "ZooKeeper does not answer") -> ProblemError:
    """The request cannot be served now: try again."""
    return ProblemError(JSONResponse({"message": message}, 503, {"Retry-After": str(RETRY_AFTER)}))


def conflict(message: str) -> ProblemError:
    """The queue's configuration does not fit the request."""
    return ProblemError(JSONResponse({"message": message}, 409))


def too_many(limit: int) -> ProblemError:
    """More messages in one request than this server takes."""
    return ProblemError(JSONResponse({"message": f"a request may have at most {limit} messages"}, 413))
