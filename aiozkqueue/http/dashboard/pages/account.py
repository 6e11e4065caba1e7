"""Signing in and out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.http.dashboard.web import sign_in
from aiozkqueue.http.dashboard.web.forms import SMALL_FORM_LIMIT, read_form
from aiozkqueue.http.dashboard.web.page import PageError, own_path, redirect, render

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from aiozkqueue.http.core.backend import Backend
    from aiozkqueue.http.dashboard.web.visit import Visit


async def show(_: Backend, request: Request) -> Response:
    """Show the sign-in page."""
    return _ask(request, "/")


def ask(request: Request) -> Response:
    """Show the sign-in page to a visitor without a valid key, who then gets the page of this request."""
    root = request.scope.get("root_path", "").rstrip("/")
    return _ask(request, request.url.path.removeprefix(root), status=403)


async def enter(backend: Backend, request: Request) -> Response:
    """Sign in with the key of the form."""
    if sign_in.is_cross_site(request):
        raise PageError(403, "Not allowed", "This form was sent by another site.")
    form = await read_form(request, SMALL_FORM_LIMIT)
    key, path = form.get("key"), own_path(form.get("next"), "/")
    caller = await backend.parts.gate.bearer(request, key) if key else None
    if caller is None:
        return _ask(request, path, status=403, wrong=True)
    response = redirect(request, path)
    sign_in.remember(request, response, key)
    return response


async def leave(visit: Visit) -> Response:
    """Sign out: delete the key from the browser."""
    visit.check(await read_form(visit.request, SMALL_FORM_LIMIT))
    response = redirect(visit.request, "/sign-in")
    sign_in.forget(visit.request, response)
    return response


def _ask(request: Request, path: str, *, status: int = 200, wrong: bool = False) -> Response:
    return render(request, "sign_in.html", None, status, wrong=wrong, next=path)
