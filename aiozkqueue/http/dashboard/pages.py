"""The dashboard's pages and the actions of their forms."""

from __future__ import annotations

import asyncio
import functools
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from aiozkqueue.errors import AccessDeniedError, InvalidNameError, PayloadError
from aiozkqueue.http.core import bodies, problems
from aiozkqueue.http.core.permissions import Verb
from aiozkqueue.http.core.service import is_there
from aiozkqueue.queue.admin.budget import Budget
from aiozkqueue.queue.admin.similar import similar_queue
from aiozkqueue.queue.internals import core_of
from aiozkqueue.sampling import UnreadableError, rates_between

from . import reading, sign_in
from .charts import chart
from .files import EDITION, ENVIRONMENT, STATIC

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from markupsafe import Markup

    from aiozkqueue.http.core.backend import Backend
    from aiozkqueue.queue.message import Message
    from aiozkqueue.queue.queue import Queue

    Handler = Callable[..., Coroutine[Any, Any, Response]]

#: The maximum size of a form in bytes: five thousand ids.
FORM_LIMIT: Final = 1024 * 1024
#: The maximum size of a form without ids, which strangers may send, bytes.
SMALL_FORM_LIMIT: Final = 4 * 1024
#: The maximum number of escapes in a form: each costs processor time, and ids have almost none.
MOST_ESCAPES: Final = 4 * reading.LOOKED
#: The maximum number of fields of a form, without the ids.
SMALL_FORM_FIELDS: Final = 10
#: The maximum number of concurrent searches of dead letters.
SEARCHES: Final = 2
#: The number of messages that a queue's page lists.
LISTED: Final = 50
#: Seconds for reading the figures and the messages of a queue's page.
LOOK: Final = 5.0
#: The maximum age of the figures on the list of queues, seconds.
FRESH: Final = 1.0
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class _PageError(Exception):
    """An error that is shown as a page."""

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(title)
        self.status = status
        self.title = title
        self.text = text


class Pages:
    """The handlers of the dashboard."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._searches = asyncio.Semaphore(SEARCHES)

    # -- reading

    async def queues(self, request: Request) -> Response:
        """Show all queues that the visitor may see."""
        visitor = await sign_in.visitor(request, self._backend.gate)
        if visitor is None or not visitor.caller.permissions.allows_anywhere(Verb.GET_STATUS):
            return _to(request, "/sign-in")
        sampler, now = self._backend.sampler, time.time()
        await sampler.look(FRESH)
        rows = [
            {
                "name": name,
                "sample": sample,
                "rates": sampler.rates(name),
                "age": None if sample.oldest is None else now - sample.oldest,
            }
            for name, sample in sampler.latest.items()
            if visitor.may(Verb.GET_STATUS, name)
        ]
        unreadable = [(name, why) for name, why in sampler.unreadable.items() if visitor.may(Verb.GET_STATUS, name)]
        return _page(request, "queues.html", visitor, rows=rows, unreadable=unreadable)

    async def queue(self, request: Request, name: str) -> Response:
        """Show one queue, its consumers and its first messages."""
        visitor, queue = await self._seen(request, name)
        sampler, now = self._backend.sampler, time.time()
        await sampler.look_at(name)
        budget = Budget(LOOK)
        stats = await queue.stats(budget=LOOK)
        messages: list[Message[bytes]] = []
        listed = await budget.allows(_list_first(queue, messages))
        return _page(
            request,
            "queue.html",
            visitor,
            name=name,
            stats=stats,
            rates=sampler.rates(name),
            age=None if stats.oldest is None else now - stats.oldest.timestamp(),
            charts=self._charts(name, now),
            consumers=await queue.admin.consumers(),
            messages=messages,
            listed=listed,
        )

    async def message(self, request: Request, name: str, message_id: str) -> Response:
        """Show one message and its history, and its payload on request."""
        visitor, queue = await self._seen(request, name)
        may_read, asked = visitor.may(Verb.POLL, name), "payload" in request.query_params
        state = await queue.state(message_id)
        return _page(
            request,
            "message.html",
            visitor,
            name=name,
            state=state,
            events=reading.events(state),
            may_read=may_read,
            asked=asked,
            payload=await reading.payload(queue, message_id) if asked and may_read else None,
        )

    async def dead_letters(self, request: Request, name: str) -> Response:
        """Show the dead letters of a queue, or those that a search finds."""
        return await self._letters(request, name)

    # -- changing

    async def confirm(self, request: Request, name: str) -> Response:
        """Ask for confirmation, with the number of dead letters that will be changed."""
        visitor, queue, form = await self._changing(request, name)
        action = _one(form, "action")
        verb, _, every = action.partition("-")
        ids, more = form.get("id", []), False
        if every:
            found = await self._search(queue, _one(form, "search"), payloads=visitor.may(Verb.POLL, name))
            ids, more = found.ids, found.more
        if verb not in {"redrive", "delete"}:
            raise _PageError(400, "Nothing to do", "The form has no valid action.")
        return _page(request, "confirm.html", visitor, name=name, verb=verb, ids=ids, more=more)

    async def change(self, request: Request, name: str) -> Response:
        """Redrive or delete the confirmed dead letters."""
        _, queue, form = await self._changing(request, name)
        action, ids = _one(form, "action"), form.get("id", [])[: reading.LOOKED]
        if action == "redrive":
            number, told = await queue.dead_letters.redrive(ids), "were redriven"
        elif action == "delete":
            number, told = await queue.dead_letters.purge(ids), "were deleted"
        else:
            raise _PageError(400, "Nothing to do", "The form has no valid action.")
        return await self._letters(request, name, f"{number:,} of {len(ids):,} dead letters {told}.")

    # -- signing in and out

    async def enter(self, request: Request) -> Response:
        """Show the sign-in page, or sign in if the form has a key."""
        if request.method != "POST":
            return _page(request, "sign_in.html", None, wrong=False)
        if sign_in.is_from_elsewhere(request):
            raise _PageError(403, "Not allowed", "This form was sent by another site.")
        key = _one(await _form(request, SMALL_FORM_LIMIT), "key")
        caller = await self._backend.gate.bearer(request, key) if key else None
        if caller is None:
            return _page(request, "sign_in.html", None, 403, wrong=True)
        response = _to(request, "/")
        sign_in.remember(request, response, key)
        return response

    async def leave(self, request: Request) -> Response:
        """Sign out: delete the key from the browser."""
        visitor = await sign_in.visitor(request, self._backend.gate)
        if visitor is None or not visitor.proves(_one(await _form(request, SMALL_FORM_LIMIT), "proof")):
            raise _PageError(403, "Not allowed", "This form was not sent from one of your pages.")
        response = _to(request, "/sign-in")
        sign_in.forget(request, response)
        return response

    # -- internal

    async def _letters(self, request: Request, name: str, done: str = "") -> Response:
        visitor, queue = await self._seen(request, name)
        search, may_read = request.query_params.get("search", ""), visitor.may(Verb.POLL, name)
        found = await self._search(queue, search, payloads=may_read)
        return _page(
            request,
            "dead_letters.html",
            visitor,
            name=name,
            search=search,
            found=found,
            shown=found.rows,
            may_read=may_read,
            may_change=visitor.may_change(name),
            done=done,
        )

    async def _search(self, queue: Queue[bytes], text: str, *, payloads: bool) -> reading.FoundLetters:
        """Search the dead letters. Few searches run at a time, since each may need some megabytes."""
        async with self._searches:
            return await reading.search(queue, text, payloads=payloads)

    async def _seen(self, request: Request, name: str) -> tuple[sign_in.Visitor, Queue[bytes]]:
        visitor = await sign_in.visitor(request, self._backend.gate)
        if visitor is None or not visitor.may(Verb.GET_STATUS, name):
            raise _PageError(
                403, "Not permitted", f"You may not see the queue {name!r}: sign in with a key that allows it."
            )
        try:
            there = await is_there(core_of(self._backend.session), name)
        except InvalidNameError as error:
            raise _PageError(404, "No such queue", str(error)) from None
        if not there:
            raise _PageError(404, "No such queue", await self._absence(visitor, name))
        return visitor, self._backend.session.queue(name)

    async def _absence(self, visitor: sign_in.Visitor, name: str) -> str:
        """Return the text for a queue that does not exist; it suggests a similar queue that the visitor may see."""

        def may_see(other: str) -> bool:
            return visitor.may(Verb.GET_STATUS, other)

        similar = await similar_queue(core_of(self._backend.session), name, visible=may_see)
        return f"There is no queue {name!r}.{'' if similar is None else f' Did you mean {similar!r}?'}"

    async def _changing(
        self, request: Request, name: str
    ) -> tuple[sign_in.Visitor, Queue[bytes], dict[str, list[str]]]:
        visitor, queue = await self._seen(request, name)
        may_change = visitor.may_change(name)
        form = await _form(request, FORM_LIMIT if may_change else SMALL_FORM_LIMIT)
        if sign_in.is_from_elsewhere(request) or not visitor.proves(_one(form, "proof")):
            raise _PageError(403, "Not allowed", "This form was not sent from one of your pages: load it again.")
        if not may_change:
            raise _PageError(
                403, "Not permitted", f"This key may not change the queue {name!r}: it needs the permission manage."
            )
        return visitor, queue, form

    def _charts(self, name: str, now: float) -> list[Markup]:
        sampler = self._backend.sampler
        seen = [*sampler.history(name)]
        latest = sampler.latest.get(name)
        if latest is not None and latest not in seen:
            seen.append(latest)
        rates = [(two.at, rates_between(one, two)) for one, two in pairwise(seen)]
        return [
            chart("Size", [(one.at, one.size) for one in seen], now),
            chart("Put per second", [(at, round(rate.put, 2)) for at, rate in rates], now),
            chart("Removed per second", [(at, round(rate.removed, 2)) for at, rate in rates], now),
            chart("Dead letters", [(one.at, one.dead) for one in seen], now),
        ]


def router(backend: Backend) -> APIRouter:
    """Return the routes of the dashboard, for the service's root."""
    pages, routes = Pages(backend), APIRouter(include_in_schema=False)
    table: tuple[tuple[str, str, Handler], ...] = (
        ("GET", "/", pages.queues),
        ("GET", "/sign-in", pages.enter),
        ("POST", "/sign-in", pages.enter),
        ("POST", "/sign-out", pages.leave),
        ("GET", "/queues/{name}", pages.queue),
        ("GET", "/queues/{name}/messages/{message_id}", pages.message),
        ("GET", "/queues/{name}/dead-letters", pages.dead_letters),
        ("POST", "/queues/{name}/dead-letters/confirm", pages.confirm),
        ("POST", "/queues/{name}/dead-letters", pages.change),
    )
    for method, path, handler in table:
        routes.add_api_route(path, backend.patient(_shown(handler)), methods=[method], response_model=None)

    @routes.get("/static/{name}")
    async def static(name: str) -> Response:
        if name not in STATIC:
            return Response(status_code=404)
        content, kind = STATIC[name]
        headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
        return Response(content, media_type=kind, headers=headers)

    return routes


async def _list_first(queue: Queue[bytes], messages: list[Message[bytes]]) -> None:
    messages += await queue.peek(LISTED)


def _shown(handler: Handler) -> Handler:
    """Return a handler whose errors are shown as pages."""

    @functools.wraps(handler)
    async def page(request: Request, **path: Any) -> Response:  # noqa: ANN401 - the route's own
        try:
            return await handler(request, **path)
        except _PageError as error:
            return _page(request, "problem.html", None, error.status, title=error.title, text=error.text)
        except (AccessDeniedError, PayloadError, UnreadableError) as error:
            status = 409 if PayloadError in {type(error), type(error.__cause__)} else 503
            return _page(request, "problem.html", None, status, title="This queue cannot be read", text=str(error))
        except problems.ProblemError as problem:
            status = problem.response.status_code
            shown = _page(request, "problem.html", None, status, title="That did not work", text="Load the page again.")
            if (after := problem.response.headers.get("retry-after")) is not None:
                shown.headers["retry-after"] = after
            return shown

    return page


def _page(
    request: Request,
    template: str,
    visitor: sign_in.Visitor | None,
    status: int = 200,
    **values: Any,  # noqa: ANN401 - what the template shows
) -> Response:
    root = quote(request.scope.get("root_path", "").rstrip("/"), safe="/")
    text = ENVIRONMENT.get_template(template).render(root=root, edition=EDITION, visitor=visitor, **values)
    return HTMLResponse(text, status, _HEADERS)


def _to(request: Request, path: str) -> Response:
    return RedirectResponse(f"{request.scope.get('root_path', '').rstrip('/')}{path}", 303, _HEADERS)


async def _form(request: Request, limit: int) -> dict[str, list[str]]:
    try:
        content = (await bodies.whole(request, limit)).decode()
        if content.count("%") > MOST_ESCAPES:
            return {}
        return parse_qs(content, keep_blank_values=True, max_num_fields=reading.LOOKED + SMALL_FORM_FIELDS)
    except (problems.ProblemError, ValueError):
        return {}


def _one(form: dict[str, list[str]], name: str) -> str:
    return form.get(name, [""])[0]
