"""The refusals of each atomic write, recorded where the session decides how to continue."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from aiozkqueue.queue.commit.group_commit import GroupCommitter

if TYPE_CHECKING:
    import asyncio

    from aiozkqueue.queue.commit.write import AtomicWrite
    from aiozkqueue.queue.state.hooks import RefusalHandler
    from aiozkqueue.zookeeper import Operation, ZooKeeperError
    from tests.simulation.workload import Run


class Refusal(NamedTuple):
    atomic_write: str
    operation: Operation
    error: str
    state: tuple[int, ...]
    """The transactions that produced the current state of the znode and its parent."""


@dataclass
class Refusals:
    seen: set[Refusal] = field(default_factory=set[Refusal])
    again: list[Refusal] = field(default_factory=list[Refusal])
    """The refusals that occurred before, with nothing changed since."""


def watch(run: Run) -> None:
    """Record the refusals of a run."""
    _runs[run.loop] = run


def _state_of(run: Run, path: str) -> tuple[int, ...]:
    nodes = run.ensemble.tree.nodes
    found = (nodes.get(path), nodes.get(path.rpartition("/")[0] or "/"))
    return tuple(number for node in found if node is not None for number in (node.czxid, node.mzxid, node.pzxid))


#: The references are weak, because a worker makes thousands of runs, and keeping them makes it several times slower.
_runs: WeakValueDictionary[asyncio.AbstractEventLoop, Run] = WeakValueDictionary()
_answer_refusal = GroupCommitter._answer_refusal


def _noted(
    self: GroupCommitter,
    batch: list[AtomicWrite],
    member: AtomicWrite,
    handler: RefusalHandler,
    operation: Operation,
    error: ZooKeeperError,
) -> None:
    run: Any = _runs.get(self.loop)
    if run is not None:
        refusals = run.history.part(Refusals)
        refusal = Refusal(
            f"{type(member.part).__name__} {member.transaction_id}",
            operation,
            type(error).__name__,
            _state_of(run, operation.path),
        )
        if refusal in refusals.seen:
            refusals.again.append(refusal)
        refusals.seen.add(refusal)
    _answer_refusal(self, batch, member, handler, operation, error)


GroupCommitter._answer_refusal = _noted  # type: ignore[method-assign]
