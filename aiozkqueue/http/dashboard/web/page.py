"""Makes responses: pages from templates, redirects, and errors that are shown as pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from starlette.responses import HTMLResponse, RedirectResponse

from .files import EDITION, ENVIRONMENT

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from .sign_in import Visitor

#: The headers of every page.
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Section(NamedTuple):
    """An entry of the navigation."""

    path: str
    title: str
    of_all: bool = False
    """Whether it is only for keys that may see all queues."""


SECTIONS: Final = (
    Section("/", "Queues"),
    Section("/dead-letters", "Dead letters"),
    Section("/consumers", "Consumers"),
    Section("/jobs", "Jobs"),
    Section("/buses", "Buses"),
    Section("/moves", "Moves"),
    Section("/servers", "Servers", of_all=True),
    Section("/findings", "Findings", of_all=True),
)


class PageError(Exception):
    """An error that is shown as a page."""

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(title)
        self.status = status
        self.title = title
        self.text = text


def render(
    request: Request,
    template: str,
    visitor: Visitor | None,
    status: int = 200,
    **values: Any,  # noqa: ANN401 - the values that the template shows
) -> Response:
    """Return a page. The template also gets the path of the service, the visitor and the navigation."""
    shown = {
        "root": quote(request.scope.get("root_path", "").rstrip("/"), safe="/"),
        "edition": EDITION,
        "visitor": visitor,
        "sections": () if visitor is None else [entry for entry in SECTIONS if visitor.sees_all or not entry.of_all],
        "section": "",
        "done": "" if visitor is None else visitor.unsealed(request.query_params),
        "offers_sign_in": True,
    }
    return HTMLResponse(ENVIRONMENT.get_template(template).render(shown | values), status, HEADERS)


def redirect(request: Request, path: str) -> Response:
    """Return a redirect to a path of the service."""
    return RedirectResponse(f"{request.scope.get('root_path', '').rstrip('/')}{path}", 303, HEADERS)


def own_path(text: str, otherwise: str) -> str:
    """Return a path that a form names, unless it may lead to another site."""
    fine = text.startswith("/") and not text.startswith("//") and "\\" not in text and text.isprintable()
    return text if fine else otherwise


def with_query(path: str, **values: str) -> str:
    """Return a path with values added to its query."""
    return f"{path}{'&' if '?' in path else '?'}{urlencode(values)}"
