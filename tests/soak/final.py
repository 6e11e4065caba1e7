"""The final contents of the servers, read by an independent client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiozkqueue.layout import decode, is_bundle
from tests.simulation.history import Final
from tests.simulation.workload import left_in
from tests.soak.plan import LIMIT, ROOT

if TYPE_CHECKING:
    from tests.observer import Observer


@dataclass
class Seen:
    """The contents of the servers."""

    final: Final = field(default_factory=Final)
    attempts: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    """For each dead letter, the number of recorded attempts, and its reason."""


async def read(view: Observer) -> Seen:
    """Read all queues."""
    seen = Seen()
    for queue in LIMIT:
        base = f"{ROOT}/{queue}/"
        items, dead = seen.final.items.setdefault(queue, []), seen.final.dead.setdefault(queue, [])
        tree = await view.tree(base.rstrip("/"))
        for path, data in tree.items():
            folder, _, name = path[len(base) :].rpartition("/")
            if folder == "dlq":
                header, body = decode(data)
                dead.append(body.decode())
                if header.dead is not None:
                    seen.attempts[body.decode()] = (header.dead.attempts, header.dead.reason)
            elif is_bundle(name) and folder != "meta":
                items += left_in(base, path, tree)
            elif folder == "items" or (folder.startswith("lanes/") and name.startswith("item")):
                items.append(decode(data)[1].decode())
            elif folder in ("locks", "meta", "due", "consumers"):
                seen.final.leftovers.append(f"{path} {data!r}")
    return seen
