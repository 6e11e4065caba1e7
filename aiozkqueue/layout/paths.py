"""The paths of all znodes of a queue and of a client."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from aiozkqueue.arguments import plain
from aiozkqueue.errors import InvalidNameError, InvalidOptionError

from .fields import LAST_MOMENT, check_moment, is_text

if TYPE_CHECKING:
    from collections.abc import Sequence

_QUEUE: Final = re.compile(r"[A-Za-z0-9_:@-][A-Za-z0-9._:@-]{0,254}")
# Characters that ZooKeeper refuses in paths: control characters, surrogates (so everything beyond the first plane,
# which Java encodes with them), private use, and the end of the first plane.
_REFUSED: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
_DUE: Final = re.compile(r"([0-9]{13,15})-([^/]{1,24})")
_LOCK: Final = "lock-"
_META: Final = "meta-"
_BUNDLE: Final = "bundle-"
_SHOWN: Final = 80


def check_queue_name(name: str, what: str = "queue") -> str:
    """Return a name that is valid for a queue, or for another object ``what`` under the same rule, as exactly a str.

    Raises:
        InvalidNameError: it is not 1 to 255 of ``A-Z a-z 0-9 . _ : @ -``, or it starts with a dot.
    """
    if not is_text(name) or not _QUEUE.fullmatch(name):
        shown = name[:_SHOWN] if is_text(name) else name
        raise InvalidNameError(
            f"{shown!r} is not a valid {what} name: use 1 to 255 of A-Z a-z 0-9 . _ : @ - and do not start with a dot"
        )
    return plain(name)


def fits_path(text: str) -> bool:
    """Whether a path that ZooKeeper accepts may contain a text."""
    return _REFUSED.search(text) is None


def has_odd_parts(path: str) -> bool:
    """Whether a part of an absolute path is empty, ``.`` or ``..``."""
    return not {"", ".", ".."}.isdisjoint(path[1:].split("/"))


def check_root(root: str) -> str:
    """Return a path that is valid as the root of all queues, as exactly a str.

    Raises:
        InvalidOptionError: it is not an absolute path of at least one part, or a part is empty, ``.`` or ``..``, or has
            characters that ZooKeeper refuses, or the path is ZooKeeper's own.
    """
    if not is_text(root) or not root.startswith("/"):
        rule = "it must be a path that starts with '/', such as '/zms'"
    elif root == "/":
        rule = "queues need a znode of their own, such as '/zms'"
    elif root.endswith("/"):
        rule = "it must not end in '/'"
    elif has_odd_parts(root):
        rule = "no part may be empty, '.' or '..'"
    elif not fits_path(root):
        rule = "it has characters that ZooKeeper refuses"
    elif root.split("/")[1] == "zookeeper":
        rule = "'/zookeeper' is the server's own"
    else:
        return plain(root)
    raise InvalidOptionError(f"root={root!r}: {rule}")


def notifications_base(root: str) -> str:
    """Return the parent of the znodes that register the notification queues below a root, each by its queue's name."""
    return f"{root}/.notifications"


class QueuePaths:
    """The znodes of one queue. Attributes are parents, and methods return the paths of their children.

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
        self.root: Final = check_root(root)
        self.name: Final = check_queue_name(name)
        self.base: Final = f"{self.root}/{self.name}"
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

    @property
    def cancelled(self) -> str:
        """The znode that names the messages that were cancelled while held."""
        return f"{self.base}/cancelled"

    @property
    def bundled(self) -> str:
        """The parent of the counters of the messages in bundles."""
        return f"{self.base}/bundled"

    @property
    def parts(self) -> frozenset[str]:
        """The names of the children that the queue's own znode may have."""
        own = {getattr(self, attribute) for attribute in self.__slots__} | {self.cancelled, self.bundled}
        return frozenset(path[len(self.base) + 1 :] for path in own if path.startswith(f"{self.base}/"))

    def item(self, name: str) -> str:
        """Return the path of an item of the plain lane, given its whole name."""
        return f"{self.items}/{name}"

    def at(self, place: str) -> str:
        """Return the path for a place relative to the queue: of a lane, or of an item, ``<lane>/<name>``."""
        return f"{self.base}/{place}"

    def place_of(self, path: str) -> str:
        """Return the place of a path, relative to the queue."""
        return path[len(self.base) + 1 :]

    def folders_among(self, path: str) -> Sequence[str]:
        """Return the children of a folder of messages or locks that are themselves folders of the queue."""
        del path
        return ()

    def lock_of(self, name: str) -> str | None:
        """Return the id in the name of a lock; None if the name is not a lock's."""
        return parse_lock(name)

    def lock(self, id: str) -> str:
        """Return the path of the lock of an item, given its id, or of a group, given ``g`` and its hash.

        The two never collide: an id has at most 24 characters, and a hash has 32.
        """
        return f"{self.locks}/{_LOCK}{id}"

    def meta(self, id: str) -> str:
        """Return the path of the attempt record of an item, given its id."""
        return f"{self.metas}/{_META}{id}"

    def bundle_record(self, id: str) -> str:
        """Return the path of the record of a claimed bundle, given the bundle's id."""
        return f"{self.metas}/{_BUNDLE}{id}"

    def bundle_count(self, bit: int, *, left: bool = False) -> str:
        """Return the path of the znode whose version counts ``2**bit`` messages in bundles for each write.

        ``left``: it counts messages that have left their bundle as single items.
        """
        return f"{self.bundled}/left-{bit}" if left else f"{self.bundled}/{bit}"

    def key(self, hash: str) -> str:
        """Return the path of a unique key, given its hash; the znode's data is the id of the message."""
        return f"{self.keys}/{hash}"

    def dead(self, name: str) -> str:
        """Return the path of a dead letter, given its name as an item."""
        return f"{self.dlq}/{name}"

    def consumer(self, id: str) -> str:
        """Return the path of a consumer's entry in the registry."""
        return f"{self.consumers}/{id}"

    def tags(self, digest: str) -> str:
        """Return the path of the tags for the digest in an item's name."""
        return f"{self.filters}/{digest}"

    def waiter(self, id: str) -> str:
        """Return the path of the entry of a session that waits for capacity to put."""
        return f"{self.waiting}/{id}"

    def record(self, place: str) -> str:
        """Return the path of a record of history, given its place there, or of an hour, given its name."""
        return f"{self.history}/{place}"

    def pin(self, name: str) -> str:
        """Return the path of a retention hold, which keeps an hour of history and all later ones."""
        return f"{self.pins}/{name}"

    def due_node(self, ms: int, id: str) -> str:
        """Return the path of the due node of item ``id``, whose timed lock expires at ``ms`` milliseconds since 1970.

        Raises:
            MalformedError: the moment is not between 1970 and the end of the year 9999.
        """
        return f"{self.due}/{check_moment(ms):013d}-{id}"


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
        """Return the path of the ``k``-th commit slot."""
        return f"{self.base}/slot-{k}"


def is_of_curator_or_kazoo(name: str) -> bool:
    """Whether a child of a queue's znode belongs to a queue of Curator or kazoo that has the same path.

    No part of our own queues has such a name.
    """
    return name.startswith(("queue-", "entry-", "qn-")) or name in {"entries", "taken"}


def parse_due(name: str) -> tuple[int, str] | None:
    """Return the time in milliseconds and the id in a child of ``due/``; None if the name is not one of ours."""
    match = _DUE.fullmatch(name)
    return None if match is None else (min(int(match[1]), LAST_MOMENT), match[2])


def parse_lock(name: str) -> str | None:
    """Return the id in a child of ``locks/``; None if the name is not a lock's."""
    return name[len(_LOCK) :] or None if name.startswith(_LOCK) else None


def parse_bundle_record(name: str) -> str | None:
    """Return the id in the name of a bundle's record in ``meta/``; None if the name is not one."""
    return name[len(_BUNDLE) :] or None if name.startswith(_BUNDLE) else None


def parse_meta(name: str) -> str | None:
    """Return the id in a child of ``meta/``; None if the name is not an attempt record's."""
    return name[len(_META) :] or None if name.startswith(_META) else None


def is_unique_key(path: str) -> bool:
    """Whether a path is that of a unique key."""
    return path.rpartition("/")[0].endswith("/keys")
