"""The services of a session that the claims on one queue use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from aiozkqueue.layout import IdSource
    from aiozkqueue.queue.commit.group_commit import GroupCommitter
    from aiozkqueue.queue.state.claim import SessionBudget
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.runtime.clock import Clock, ServerClock
    from aiozkqueue.runtime.tasks import TaskOwner
    from aiozkqueue.zookeeper import ZooKeeper


@dataclass(frozen=True, slots=True, eq=False)
class ClaimServices:
    """One queue in one session: each part of a dispatcher is made with it, and keeps what it needs."""

    state: QueueState
    zookeeper: ZooKeeper
    committer: GroupCommitter
    tasks: TaskOwner
    clock: Clock
    server_clock: ServerClock
    ids: IdSource
    random: Random
    budgets: SessionBudget
    """The bytes of lock paths that the session may still create."""
    about: bytes
    """The data of the session's entry as a consumer: where it runs."""
