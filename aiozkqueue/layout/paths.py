"""Where everything of a queue and of a client is stored."""

from __future__ import annotations

import re
from typing import Final

from aiozkqueue.errors import InvalidOptionError

from .errors import MalformedError
from .fields import LAST_MOMENT, is_text
from .names import check_queue_name

# What ZooKeeper refuses in paths: control characters, surrogates (so all beyond the first plane, which Java spells with
# them), private use, and the last of the first plane.
_REFUSED: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
_DUE: Final = re.compile(r"([0-9]{13,15})-([^/]{1,24})")
_LOCK: Final = "lock-"
_META: Final = "meta-"


def check_root(root: str) -> None:
    """Refuse what cannot be the root of all queues.

    Raises:
        InvalidOptionError: not an absolute path of at least one part, or a part is empty, ``.`` or ``..``, or has
            characters that ZooKeeper refuses, or the path is ZooKeeper's own.
    """
    if not is_text(root) or not root.startswith("/"):
        rule = "it must be a path that starts with '/', such as '/zms'"
    elif root == "/":
        rule = "queues need a znode of their own, such as '/zms'"
    elif root.endswith("/"):
        rule = "it must not end in '/'"
    elif not {"", ".", ".."}.isdisjoint(root[1:].split("/")):
        rule = "no part may be empty, '.' or '..'"
    elif _REFUSED.search(root):
        rule = "it has characters that ZooKeeper refuses"
    elif root.split("/")[1] == "zookeeper":
        rule = "'/zookeeper' is the server's own"
    else:
        return
    raise InvalidOptionError(f"root={root!r}: {rule}")


class QueuePaths:
    """The znodes of one queue. Parents are attributes, their children are made by methods.

    Raises:
        InvalidOptionError: see `check_root`.
        InvalidNameError: see `check_queue_name`.
    """

    __slots__ = (
        "base",
        "consumers",
        "dlq",
        "due",
        "filters",
        "history",
        "items",
        "janitor",
        "keys",
        "lanes",
        "later",
        "ledgers",
        "locks",
        "metas",
        "name",
        "pins",
        "reaper",
        "root",
        "sinks",
        "waiting",
    )

    def __init__(self, root: str, name: str, *, items: str | None = None, locks: str | None = None) -> None:
        check_root(root)
        check_queue_name(name)
        self.root: Final = root
        self.name: Final = name
        self.base: Final = f"{root}/{name}"
        self.items: Final = items or f"{self.base}/items"
        self.lanes: Final = f"{self.base}/lanes"
        self.later: Final = f"{self.base}/later"
        self.locks: Final = locks or f"{self.base}/locks"
        self.due: Final = f"{self.base}/due"
        self.metas: Final = f"{self.base}/meta"
        self.keys: Final = f"{self.base}/keys"
        self.dlq: Final = f"{self.base}/dlq"
        self.history: Final = f"{self.base}/history"
        self.pins: Final = f"{self.history}/.pins"
        self.janitor: Final = f"{self.base}/janitor"
        self.reaper: Final = f"{self.base}/reaper"
        self.consumers: Final = f"{self.base}/consumers"
        self.filters: Final = f"{self.base}/filters"
        self.waiting: Final = f"{self.base}/waiting"
        self.ledgers: Final = f"{self.base}/ledger"
        self.sinks: Final = f"{self.base}/sinks"

    def __repr__(self) -> str:
        return f"QueuePaths({self.root!r}, {self.name!r})"

    def item(self, name: str) -> str:
        """An item of the plain lane, by its whole name."""
        return f"{self.items}/{name}"

    def at(self, place: str) -> str:
        """What lies at a place relative to the queue: a lane, or ``<lane>/<name>`` of an item."""
        return f"{self.base}/{place}"

    def place_of(self, path: str) -> str:
        """The place relative to the queue of what lies at a path."""
        return path[len(self.base) + 1 :]

    def lock_of(self, name: str) -> str | None:
        """What a child of ``locks`` locks; None when it is no lock."""
        return parse_lock(name)

    def lock(self, id: str) -> str:
        """The lock of an item, by its id; of a group, by ``g`` and its hash.

        The two never meet: an id has at most 24 characters, a hash has 32.
        """
        return f"{self.locks}/{_LOCK}{id}"

    def meta(self, id: str) -> str:
        """The attempts at an item, by its id."""
        return f"{self.metas}/{_META}{id}"

    def key(self, hash: str) -> str:
        """What a unique key is held by, by its hash; its data is the id of the message."""
        return f"{self.keys}/{hash}"

    def dead(self, name: str) -> str:
        """A dead letter, by the name it had as an item."""
        return f"{self.dlq}/{name}"

    def consumer(self, id: str) -> str:
        """A taking session's entry in the registry."""
        return f"{self.consumers}/{id}"

    def tags(self, digest: str) -> str:
        """What the digest in an item's name stands for: the tags that consumers may choose by."""
        return f"{self.filters}/{digest}"

    def waiter(self, id: str) -> str:
        """The entry of a session that waits for room to put."""
        return f"{self.waiting}/{id}"

    def record(self, place: str) -> str:
        """A record of history, by its place there, or an hour by its name."""
        return f"{self.history}/{place}"

    def pin(self, name: str) -> str:
        """What keeps clean-up from an hour of history and all later ones."""
        return f"{self.pins}/{name}"

    def due_node(self, ms: int, id: str) -> str:
        """What tells that the timed lock of item ``id`` ends at ``ms`` milliseconds since 1970.

        Raises:
            MalformedError: the moment is not between 1970 and the end of the year 9999.
        """
        if not 0 <= ms <= LAST_MOMENT:
            raise MalformedError(f"{ms} is not a moment between 1970 and 9999 in milliseconds")
        return f"{self.due}/{ms:013d}-{id}"


class ClientPaths:
    """The znodes of one client, which outlive its ZooKeeper sessions.

    Raises:
        InvalidOptionError: see `check_root`.
    """

    __slots__ = ("base", "clients")

    def __init__(self, root: str, client: str) -> None:
        check_root(root)
        self.clients: Final = f"{root}/.clients"
        self.base: Final = f"{self.clients}/{client}"

    def __repr__(self) -> str:
        return f"ClientPaths({self.base!r})"

    def slot(self, k: int) -> str:
        """The ``k``-th commit slot."""
        return f"{self.base}/slot-{k}"


def parse_due(name: str) -> tuple[int, str] | None:
    """The end in milliseconds and the id in a child of ``due/``; None when it is none of ours."""
    match = _DUE.fullmatch(name)
    return None if match is None else (min(int(match[1]), LAST_MOMENT), match[2])


def parse_lock(name: str) -> str | None:
    """The id in a child of ``locks/``; None when it is no lock."""
    return name[len(_LOCK) :] or None if name.startswith(_LOCK) else None


def parse_meta(name: str) -> str | None:
    """The id in a child of ``meta/``; None when it records no attempts."""
    return name[len(_META) :] or None if name.startswith(_META) else None
