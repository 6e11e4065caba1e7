"""Changes: a button requests each of them, a page states its effect and asks for confirmation, and then it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.errors import (
    AccessDeniedError,
    ConfigConflictError,
    ConflictError,
    DuplicateKeyError,
    ItemNotEmptyError,
    MessageTooLargeError,
    NotFoundError,
    NotRedrivenError,
    PartlyDeniedError,
    QueueFullError,
    QueueInUseError,
    TransactionTooLargeError,
)
from aiozkqueue.http.core.permissions import Verb
from aiozkqueue.http.dashboard.readings.letters import LetterFilter
from aiozkqueue.http.dashboard.web.forms import SELECTED
from aiozkqueue.http.dashboard.web.page import PageError, own_path
from aiozkqueue.layout import QueueConfig
from aiozkqueue.operations.alter import Alteration, AlterationTarget, move
from aiozkqueue.session.internals import core_of

from .dead_letters import find

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.responses import Response

    from aiozkqueue.http.dashboard.web.forms import Form
    from aiozkqueue.http.dashboard.web.visit import Visit
    from aiozkqueue.session.queue import Queue


#: Refusals that the visitor can resolve: ZooKeeper has answered, and nothing was changed.
_REFUSALS: Final = (
    ConfigConflictError,
    ConflictError,
    DuplicateKeyError,
    ItemNotEmptyError,
    MessageTooLargeError,
    TransactionTooLargeError,
)


class Asked(NamedTuple):
    """A change that was asked for."""

    visit: Visit
    queue: Queue[bytes]
    ids: list[str]
    """The messages that are to be changed."""
    target: str
    """The other queue; empty: none."""

    @property
    def letters(self) -> str:
        """The number of dead letters in words."""
        return f"{len(self.ids):,} dead {'letter' if len(self.ids) == 1 else 'letters'}"


class Action(NamedTuple):
    """A kind of change."""

    verb: str
    """The word on the button."""
    what: Callable[[Asked], str]
    """The object of the verb."""
    text: str
    """The consequence."""
    make: Callable[[Asked], Awaitable[str]]
    """Makes the change, and returns the result in words."""
    danger: bool = False
    """Whether it cannot be undone."""
    target: str = ""
    """The label of the field for another queue; empty: there is no field."""
    needs_target: bool = False
    needs_ids: bool = False
    back: str = ""
    """The page to show afterwards; empty: the page with the button."""


async def ask(visit: Visit, name: str) -> Response:
    """Ask for confirmation of a change, or make it if it is confirmed."""
    form = await visit.form(name)
    queue = await visit.queue(name)
    action = ACTIONS.get(form.get("action"))
    if action is None:
        raise PageError(400, "Nothing to do", "The form has no valid action.")
    ids, more = await _chosen(visit, queue, form) if action.needs_ids else ([], False)
    asked = Asked(visit, queue, ids, form.get("target").strip())
    problem = ""
    if form.get("confirmed") == "yes":
        problem = await _problem(action, asked)
        if not problem:
            return await _make(action, asked, form)
    return visit.page(
        "confirm.html",
        section="/",
        name=name,
        action=form.get("action"),
        kind=action,
        what=action.what(asked),
        asked=asked,
        more=more,
        problem=problem,
        back=own_path(form.get("back"), f"/queues/{name}"),
        suggested=await _suggested(asked) if action.target else [],
    )


async def _make(action: Action, asked: Asked, form: Form) -> Response:
    name = asked.queue.name
    try:
        done = await action.make(asked)
    except NotFoundError:  # its text may name queues that the visitor may not see
        raise PageError(404, "No such queue", f"The queue {name!r} has been deleted in the meantime.") from None
    except _REFUSALS as error:
        raise PageError(409, "That did not work", str(error)) from None
    except PartlyDeniedError as error:
        raise PageError(409, f"Some {'dead letters' if action.needs_ids else 'messages'} remain", str(error)) from None
    except AccessDeniedError as error:
        raise PageError(503, "ZooKeeper does not permit this", str(error)) from None
    finally:
        for changed in filter(None, (name, asked.target)):
            await asked.visit.changed(changed)
    return asked.visit.finished(action.back or own_path(form.get("back"), f"/queues/{name}"), done)


async def _problem(action: Action, asked: Asked) -> str:
    """Return why a change cannot be made; empty if it can."""
    visit, target = asked.visit, asked.target
    if action.needs_ids and not asked.ids:
        return "No message is selected."
    if not target:
        return "Name the other queue." if action.needs_target else ""
    if target == asked.queue.name:
        return "The other queue is this queue."
    try:
        await visit.queue(target)
    except PageError as error:
        return error.text
    if not visit.visitor.may(Verb.POST, target):
        return f"This key may not put into the queue {target!r}: it needs the permission post."
    return ""


async def _suggested(asked: Asked) -> list[str]:
    """Return the queues that the visitor may put into."""
    visit = asked.visit
    names = sorted([*(queue.name for queue in await visit.figures()), *visit.omitted()])
    return [name for name in names if name != asked.queue.name and visit.visitor.may(Verb.POST, name)]


async def _chosen(visit: Visit, queue: Queue[bytes], form: Form) -> tuple[list[str], bool]:
    """Return the selected messages, or all dead letters that a search finds, and whether there are more."""
    if form.get("every"):
        found = await find(visit, queue, LetterFilter(form.get("search"), form.get("reason")))
        return found.ids, found.more
    return form.all("id")[:SELECTED], False


# -- the changes


async def _pause(asked: Asked) -> str:
    await asked.queue.configure(QueueConfig(paused=True))
    return f"The queue {asked.queue.name} is paused."


async def _resume(asked: Asked) -> str:
    await asked.queue.configure(QueueConfig(paused=False))
    return f"The queue {asked.queue.name} is resumed."


async def _purge(asked: Asked) -> str:
    if await asked.visit.purges.purge(asked.queue):
        return f"All messages of {asked.queue.name} that were not in flight were deleted."
    return f"The messages of {asked.queue.name} are being deleted; this continues in the background."


async def _delete(asked: Asked) -> str:
    try:
        await asked.queue.admin.delete()
    except QueueInUseError as error:
        raise PageError(409, "The queue is in use", str(error)) from None
    return f"The queue {asked.queue.name} was deleted."


async def _move_all(asked: Asked) -> str:
    await asked.visit.session.admin.moves.start(asked.queue.name, asked.target)
    asked.visit.shared.drop(("moves",))
    return f"The messages of {asked.queue.name} are being moved to {asked.target}; the page Moves shows the progress."


async def _redrive(asked: Asked) -> str:
    try:
        number = await asked.queue.dead_letters.redrive(asked.ids, into=asked.target or None)
    except QueueFullError as error:
        raise PageError(409, "The queue is full", str(error)) from None
    except NotRedrivenError as error:
        raise PageError(409, "Some dead letters remain", str(error)) from None
    into = f" into {asked.target}" if asked.target else ""
    return f"{number:,} of {asked.letters} {'was' if len(asked.ids) == 1 else 'were'} redriven{into}."


async def _delete_letters(asked: Asked) -> str:
    number = await asked.queue.dead_letters.purge(asked.ids)
    return f"{number:,} of {asked.letters} {'was' if len(asked.ids) == 1 else 'were'} deleted."


async def _cancel(asked: Asked) -> str:
    return _altered(await asked.queue.cancel(id=asked.ids[0]), "The message was cancelled.")


async def _move_message(asked: Asked) -> str:
    try:
        wanted = AlterationTarget(asked.queue, asked.ids[0], None)
        moved = await move(core_of(asked.visit.session), wanted, asked.target)
    except QueueFullError as error:
        raise PageError(409, "The queue is full", str(error)) from None
    return _altered(moved, f"The message was moved to {asked.target}.")


def _altered(result: Alteration, done: str) -> str:
    """Return the result in words. Raises: PageError: nothing was changed."""
    if result is Alteration.DONE:
        return done
    if result is Alteration.HELD:
        raise PageError(409, "The message is in flight", "A consumer holds it, so it was not changed. Try again later.")
    raise PageError(404, "No such message", "The message has ended in the meantime.")


def _queue(asked: Asked) -> str:
    return f"the queue {asked.queue.name}"


def _messages(asked: Asked) -> str:
    return f"all messages of {asked.queue.name}"


def _message(asked: Asked) -> str:
    return f"the message {asked.ids[0] if asked.ids else ''} of {asked.queue.name}"


def _letters(asked: Asked) -> str:
    return f"{asked.letters} of {asked.queue.name}"


ACTIONS: Final = {
    "pause": Action(
        "Pause",
        _queue,
        "Consumers get no further messages until it is resumed. Messages in flight are finished.",
        _pause,
    ),
    "resume": Action("Resume", _queue, "Consumers get messages again.", _resume),
    "purge": Action(
        "Purge",
        _messages,
        "All messages are deleted permanently, leased ones too. Those in flight and the dead letters stay.",
        _purge,
        danger=True,
    ),
    "delete-queue": Action(
        "Delete",
        _queue,
        "The queue is deleted permanently, with its configuration and its history. It must be empty, without dead "
        "letters and without consumers.",
        _delete,
        danger=True,
        back="/",
    ),
    "move": Action(
        "Move",
        _messages,
        "The move runs in the background. Messages that consumers hold are moved when they are released.",
        _move_all,
        target="To the queue",
        needs_target=True,
    ),
    "redrive": Action(
        "Redrive",
        _letters,
        "They go to the end of the queue and start again at attempt 1.",
        _redrive,
        target="Into another queue (optional)",
        needs_ids=True,
    ),
    "delete": Action("Delete", _letters, "They are deleted permanently.", _delete_letters, danger=True, needs_ids=True),
    "cancel": Action(
        "Cancel", _message, "It is removed before a consumer gets it.", _cancel, danger=True, needs_ids=True
    ),
    "move-one": Action(
        "Move",
        _message,
        "Its attempts start again at 1.",
        _move_message,
        target="To the queue",
        needs_target=True,
        needs_ids=True,
    ),
}
