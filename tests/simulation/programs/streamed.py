"""The state of a stream's batches on the servers during a history, with the messages that tasks have read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiozkqueue.batches.records import LedgerRecord
from aiozkqueue.layout import decode, decode_bundle, is_bundle_at, messages_in, name_at
from aiozkqueue.operations.ledger_pages import Manifest, is_page
from aiozkqueue.testing.simulator.loop import EPOCH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiozkqueue.testing.simulator.tree import Znode
    from tests.simulation.history import History
    from tests.simulation.recorder import Recorder

STREAMED, GROUP = "streamed", "spark"
BASE = f"/zms/{STREAMED}"
LEDGER = f"{BASE}/ledger/{GROUP}"
MANIFEST = f"{LEDGER}/batch-"


@dataclass
class Batches:
    """The observations of each batch, by its number."""

    held: dict[int, dict[str, str]] = field(default_factory=dict[int, dict[str, str]])
    """Its messages when it was sealed: tokens, with the paths of their items or bundles."""
    made: dict[int, float] = field(default_factory=dict[int, float])
    """The time when its manifest was created. Before that, the batch held no messages."""
    begun: dict[int, float] = field(default_factory=dict[int, float])
    """The time when its acknowledgement was first seen: it is marked, or some of its messages have ended."""
    gone: dict[int, set[str]] = field(default_factory=dict[int, set[str]])
    """The tokens that an acknowledgement has ended."""
    given_back: set[int] = field(default_factory=set[int])
    """Batches that existed when an operator released the ledger, and whose acknowledgement had not begun."""
    releasing: int = 0
    """Operators that release the ledger, or were killed during a release."""
    asked: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """The acknowledgements that drivers have requested: the last batch, and the stream."""
    read: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """The tokens that the tasks of each stream have read."""
    returned: list[str] = field(default_factory=list[str])
    """Violations: batches that were returned although their acknowledgement had begun before the request."""

    def note_returned(self, number: int, what: str) -> None:
        self.returned.append(f"batch {number} was returned as {what}, although its acknowledgement had begun")

    def forced_open(self, history: History, number: int) -> bool:
        """Whether the messages of a batch may have been released by force, although the sink has them."""
        made = self.made.get(number, 0.0)
        return any(opened.queue == STREAMED and opened.ended >= made for opened in history.opened)


def observe(run: Recorder) -> None:
    """Observe the committed state, which every server has or will have, and which no election can undo."""
    ensemble = run.ensemble  # type: ignore[attr-defined]  # this recorder is a `Run`
    nodes: Mapping[str, Znode] = ensemble.committed_tree().nodes
    batches, now = run.history.part(Batches), run.loop.time()
    done = LedgerRecord.decode(nodes[LEDGER].data).done if LEDGER in nodes else -1  # written together with each mark
    manifests: dict[int, Manifest] = {}
    for path, node in nodes.items():
        if path.startswith(MANIFEST) and "/" not in (name := path.removeprefix(MANIFEST)):
            number = int(name)
            manifests[number] = Manifest.decode(node.data)
            batches.made.setdefault(number, node.ctime / 1000 - EPOCH - ensemble.offset)
            if manifests[number].sealed and number not in batches.held and number not in batches.given_back:
                _note_held(batches, nodes, number, manifests[number])
    for number, held in batches.held.items():
        gone = {token for token, path in held.items() if path not in nodes}
        marked = number in manifests and manifests[number].done
        if number in batches.given_back:
            continue
        # During a release, other consumers may already have ended messages of a batch that was never acknowledged.
        if marked or (gone and (number <= done or not batches.releasing)):
            batches.begun.setdefault(number, now)
            batches.gone[number] = gone
        elif batches.releasing:
            batches.given_back.add(number)
    if batches.releasing:
        batches.given_back.update(number for number in manifests if number not in batches.begun)


def _note_held(batches: Batches, nodes: Mapping[str, Znode], number: int, manifest: Manifest) -> None:
    path = f"{MANIFEST}{number:010d}"
    places = [
        line.partition(" ")[0]
        for name in nodes[path].children
        if is_page(name)
        for line in nodes[f"{path}/{name}"].data.decode().split("\n")
    ]
    items = [f"{BASE}/{place}" for place in places]
    if sum(messages_in(name_at(item)) for item in items) == manifest.messages and all(item in nodes for item in items):
        batches.held[number] = {token: item for item in items for token in tokens_in(item, nodes[item].data)}


def tokens_in(path: str, data: bytes) -> list[str]:
    """Return the tokens of the messages of an item or a bundle."""
    stored = [member.data for member in decode_bundle(data)] if is_bundle_at(path) else [data]
    return [decode(envelope)[1].decode() for envelope in stored]
