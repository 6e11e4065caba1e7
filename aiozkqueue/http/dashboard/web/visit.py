"""A request of a visitor: the permissions, the queue, the form, and the page that answers it."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from aiozkqueue.errors import AccessDeniedError, InvalidNameError
from aiozkqueue.http.core.permissions import Verb
from aiozkqueue.http.core.service import queue_exists
from aiozkqueue.http.core.shared_readings import FRESH
from aiozkqueue.http.dashboard.readings.figures import Figures, figures_of
from aiozkqueue.operations.similar import similar_queue
from aiozkqueue.sampling import MOST_LISTED, UnreadableError
from aiozkqueue.session.internals import core_of

from . import sign_in
from .forms import FORM_LIMIT, SMALL_FORM_LIMIT, Form, read_form
from .page import PageError, redirect, render, with_query

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from aiozkqueue.http.core.backend import Backend
    from aiozkqueue.sampling import Sampler
    from aiozkqueue.session.queue import Queue

#: Seconds for which a page waits for the first sample of all queues after the server has started.
FIRST_SAMPLE: Final = 5.0


class Visit:
    """One request, whose visitor is known."""

    def __init__(self, backend: Backend, request: Request, visitor: sign_in.Visitor) -> None:
        parts = backend.parts
        self.request = request
        self.visitor = visitor
        self.session = parts.session
        self.sampler = parts.sampler
        self.charts = parts.charts
        self.shared = parts.shared
        self.purges = parts.purges
        self.listing = parts.listing
        self._backend = backend

    # -- the permissions of the visitor

    def sees(self, queue: str) -> bool:
        """Whether the visitor may see a queue."""
        return self.visitor.may(Verb.GET_STATUS, queue)

    def require_all(self) -> None:
        """Refuse visitors who may not see all queues. Raises: PageError."""
        if not self.visitor.sees_all:
            raise PageError(403, "Not permitted", "This page needs the permission queue|get_status|*.")

    async def queue(self, name: str) -> Queue[bytes]:
        """Return a queue that the visitor may see. Raises: PageError: the visitor may not, or it does not exist."""
        if not self.sees(name):
            text = f"This key may not see the queue {name!r}: it needs the permission get_status."
            raise PageError(403, "Not permitted", text)
        core = core_of(self.session)
        try:
            exists = await self.shared.get_any(("there", name), lambda: queue_exists(core, name))
        except InvalidNameError as error:
            raise PageError(404, "No such queue", str(error)) from None
        if not exists:
            similar = await similar_queue(core, name, visible=self.sees)
            hint = "" if similar is None else f" Did you mean {similar!r}?"
            raise PageError(404, "No such queue", f"There is no queue {name!r}.{hint}")
        return self.session.queue(name)

    def listing_of(self, queue: Queue[bytes], names: int) -> Queue[bytes]:
        """Return the queue for a reading of this many names; if they are very many, in the session for listings."""
        return self.listing.queue(queue.name) if names > MOST_LISTED else queue

    # -- figures

    async def figures(self) -> list[Figures]:
        """Return the figures of all queues that the visitor may see, from the samples that the server takes anyway.

        Raises: PageError: the server has just started, and has not read all queues yet.
        """
        sampler, now = self.sampler, time.time()
        if not sampler.sampled_at:
            await self._sample_first(sampler)
        return [
            figures_of(name, sample, sampler.rates(name), now)
            for name, sample in sorted(sampler.latest.items())
            if self.sees(name)
        ]

    async def _sample_first(self, sampler: Sampler) -> None:
        try:
            async with asyncio.timeout(FIRST_SAMPLE):
                await sampler.sample_all(FRESH)
        except TimeoutError:
            if not self._backend.connected:
                raise
            text = "The server has just started, and it reads all queues once. Load the page again in a few seconds."
            raise PageError(503, "The queues are being read", text) from None

    def omitted(self) -> list[str]:
        """Return the queues that the visitor may see and that have no figures, because there are too many queues."""
        latest = self.sampler.latest
        return [name for name in self.sampler.omitted if name not in latest and self.sees(name)]

    async def figures_of(self, name: str) -> Figures:
        """Return the figures of one queue: of the last five seconds if it can be read soon.

        Raises: UnreadableError; PageError: the queue has just been deleted.
        """
        sampler = self.sampler
        sample = sampler.latest.get(name)
        if sample is None:
            sample = await self.shared.get(("sample", name), lambda: sampler.sample(name))
        elif time.time() - sample.at > FRESH:
            await self.shared.get_or_previous(("sample", name), lambda: sampler.sample(name))
            sample = sampler.latest.get(name, sample)  # the samples of all queues may have left it out meanwhile
        if sample is None:
            raise PageError(404, "No such queue", f"There is no queue {name!r}.")
        return figures_of(name, sample, sampler.rates(name), time.time())

    # -- forms

    async def form(self, queue: str) -> Form:
        """Read a form that changes something in a queue. Raises: PageError: it may not."""
        may_change = self.visitor.may_change(queue)
        form = await read_form(self.request, FORM_LIMIT if may_change else SMALL_FORM_LIMIT)
        self.check(form)
        if not may_change:
            text = f"This key may not change the queue {queue!r}: it needs the permission manage."
            raise PageError(403, "Not permitted", text)
        return form

    def check(self, form: Form) -> None:
        """Check that a form is from a page of this visitor. Raises: PageError: it is not."""
        if sign_in.is_cross_site(self.request) or not self.visitor.proves(form.get("proof")):
            raise PageError(403, "Not allowed", "This form was not sent from one of your pages: load it again.")

    async def changed(self, queue: str) -> None:
        """Read a queue again, because it was changed or deleted. If that fails, the next samples give the reason."""
        self.shared.forget(queue)
        with suppress(AccessDeniedError, UnreadableError):
            if await queue_exists(core_of(self.session), queue):
                await self.sampler.sample(queue)
            else:
                self.sampler.forget(queue)

    # -- answers

    def page(self, template: str, status: int = 200, **values: Any) -> Response:  # noqa: ANN401 - for the template
        """Return a page."""
        return render(self.request, template, self.visitor, status, **values)

    def query(self, name: str) -> str:
        """Return a value of the address; empty if it has none."""
        return self.request.query_params.get(name, "").strip()

    def finished(self, path: str, text: str) -> Response:
        """Go to a page, which shows the result of a change."""
        return redirect(self.request, with_query(path, done=text, seal=self.visitor.seal(text)))
