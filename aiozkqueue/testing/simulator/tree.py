"""The znodes of one server: pure, without time or randomness.

The leader checks and applies a write (`Tree.write`), and the other servers replay its changes in the same order
(`Tree.replay`).
"""

from __future__ import annotations

from typing import NamedTuple

from aiozkqueue.layout import fits_path, has_odd_parts
from aiozkqueue.zookeeper.errors import (
    BadVersionError,
    MultiError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    ServerError,
    ZooKeeperError,
)
from aiozkqueue.zookeeper.interface import Check, Create, EventKind, Node, Operation, Result, SetData, Stat
from aiozkqueue.zookeeper.paths import parent_of

BAD_ARGUMENTS, NO_CHILDREN_FOR_EPHEMERALS = -8, -108
#: The counter of sequential names does not wrap: every further create in that parent is refused.
LAST_SEQUENCE = LAST_VERSION = 2_147_483_647
ANY_VERSION = -1
CONTAINER_OWNER = -(2**63)


class Znode:
    """One znode. ``creates`` is the number of children ever created in it: the sequence counter."""

    __slots__ = (
        "children",
        "creates",
        "ctime",
        "czxid",
        "data",
        "mtime",
        "mzxid",
        "owner",
        "pzxid",
        "version",
    )

    def __init__(self, data: bytes, owner: int, zxid: int, time: int) -> None:
        self.data: bytes = data
        self.owner: int = owner
        self.czxid: int = zxid
        self.mzxid: int = zxid
        self.pzxid: int = zxid
        self.ctime: int = time
        self.mtime: int = time
        self.version: int = 0
        self.creates: int = 0
        self.children: dict[str, None] = {}

    def stat(self) -> Stat:
        """Return the stat that clients receive. The version of the children counts creates and deletes."""
        count = len(self.children)
        return Stat(
            self.czxid,
            self.mzxid,
            self.ctime,
            self.mtime,
            self.version,
            2 * self.creates - count,
            0,
            self.owner,
            len(self.data),
            count,
            self.pzxid,
        )


class Change(NamedTuple):
    """One effect of a transaction, with all the data for a replay."""

    kind: EventKind
    path: str
    data: bytes = b""
    owner: int = 0


class Tree:
    """All znodes of one server."""

    def __init__(self) -> None:
        self.nodes: dict[str, Znode] = {"/": Znode(b"", 0, 0, 0)}
        self.ephemerals: dict[int, dict[str, None]] = {}
        self.applied: int = 0
        """The zxid of the last transaction."""

    # Writing

    def write(
        self, operations: list[Operation] | tuple[Operation, ...], owner: int, zxid: int, time: int
    ) -> tuple[list[Result], list[Change]]:
        """Check and apply a multi; return its results and changes. A refused multi leaves the tree unchanged.

        Raises:
            MultiError: names the first operation that fails.
        """
        results: list[Result] = []
        changes: list[Change] = []
        undo: list[tuple[str, Znode | None, tuple[int, int] | None]] = []
        for index, operation in enumerate(operations):
            try:
                change = self._check(operation, owner)
            except ZooKeeperError as error:
                self._undo(undo)
                raise MultiError(index, error) from None
            if change is None:
                results.append(None)
                continue
            undo.append(self._before(change))
            node = self._apply(change, zxid, time)
            changes.append(change)
            if change.kind is EventKind.CREATED:
                results.append(change.path)
            else:
                results.append(None if node is None else node.stat())
        self.applied = zxid
        return results, changes

    def end_session(self, owner: int, zxid: int, time: int) -> list[Change]:
        """Delete all ephemerals of a session in one transaction."""
        changes = [Change(EventKind.DELETED, path) for path in self.ephemerals.get(owner, ())]
        self.replay(changes, zxid, time)
        return changes

    def replay(self, changes: list[Change], zxid: int, time: int) -> None:
        """Apply changes that another server has checked."""
        for change in changes:
            self._apply(change, zxid, time)
        self.applied = zxid

    def copy(self) -> Tree:
        """Return a separate tree with the same znodes."""
        other = Tree()
        for path, node in self.nodes.items():
            copied = Znode(node.data, node.owner, node.czxid, node.ctime)
            copied.mzxid, copied.pzxid, copied.mtime = node.mzxid, node.pzxid, node.mtime
            copied.version, copied.creates, copied.children = node.version, node.creates, dict(node.children)
            other.nodes[path] = copied
        other.ephemerals = {owner: dict(paths) for owner, paths in self.ephemerals.items()}
        other.applied = self.applied
        return other

    def _check(self, operation: Operation, owner: int) -> Change | None:
        if isinstance(operation, Create):
            return self._check_create(operation, owner)
        path = operation.path
        node = self._get(path)
        if operation.version not in (ANY_VERSION, node.version):
            raise BadVersionError(path)
        if isinstance(operation, Check):
            return None
        if isinstance(operation, SetData):
            return Change(EventKind.CHANGED, path, operation.data)
        if path == "/":
            raise ServerError(BAD_ARGUMENTS, path)
        if node.children:
            raise NotEmptyError(path)
        return Change(EventKind.DELETED, path)

    def _check_create(self, operation: Create, owner: int) -> Change:
        path = operation.path
        parent = self.nodes.get(parent_of(path))
        if operation.sequential:
            path = f"{path}{0 if parent is None else parent.creates:010d}"
        if path == "/":
            raise NodeExistsError(path)
        if parent is None:
            raise NoNodeError(operation.path)
        check_path(path)
        if path in self.nodes:
            raise NodeExistsError(operation.path)
        if parent.owner not in (0, CONTAINER_OWNER):
            raise ServerError(NO_CHILDREN_FOR_EPHEMERALS, operation.path)
        mine = owner if operation.ephemeral else CONTAINER_OWNER if operation.container else 0
        return Change(EventKind.CREATED, path, operation.data, mine)

    def _apply(self, change: Change, zxid: int, time: int) -> Znode | None:
        path = change.path
        if change.kind is EventKind.CHANGED:
            node = self.nodes[path]
            node.data, node.mzxid, node.mtime = change.data, zxid, time
            node.version = _next_version(node.version)
            return node
        above, _, name = path.rpartition("/")
        parent = self.nodes[above or "/"]
        if change.kind is EventKind.CREATED:
            self.nodes[path] = Znode(change.data, change.owner, zxid, time)
            parent.children[name] = None
            if parent.creates < LAST_SEQUENCE:
                parent.creates += 1
                parent.pzxid = zxid
            self._own(change.owner, path)
            return None
        node = self.nodes.pop(path)
        del parent.children[name]
        parent.pzxid = zxid
        self._disown(node.owner, path)
        return None

    def _own(self, owner: int, path: str) -> None:
        """Add a new znode to the ephemerals of its session, if it is one."""
        if owner > 0:
            self.ephemerals.setdefault(owner, {})[path] = None

    def _disown(self, owner: int, path: str) -> None:
        if owner > 0:
            owned = self.ephemerals[owner]
            del owned[path]
            if not owned:
                del self.ephemerals[owner]

    def _before(self, change: Change) -> tuple[str, Znode | None, tuple[int, int] | None]:
        """Return the values that `_undo` needs to revert a change."""
        node = self.nodes.get(change.path)
        if change.kind is EventKind.CHANGED:
            assert node is not None  # noqa: S101 - checked
            copied = Znode(node.data, node.owner, node.czxid, node.ctime)
            copied.mzxid, copied.mtime, copied.version = node.mzxid, node.mtime, node.version
            return change.path, copied, None
        parent = self.nodes[parent_of(change.path)]
        return change.path, node, (parent.creates, parent.pzxid)

    def _undo(self, undo: list[tuple[str, Znode | None, tuple[int, int] | None]]) -> None:
        for path, before, of_parent in reversed(undo):
            if of_parent is None:
                node, old = self.nodes[path], before
                assert old is not None  # noqa: S101 - a change of data
                node.data, node.mzxid, node.mtime, node.version = old.data, old.mzxid, old.mtime, old.version
                continue
            above, _, name = path.rpartition("/")
            parent = self.nodes[above or "/"]
            if before is None:
                gone = self.nodes.pop(path)
                del parent.children[name]
                self._disown(gone.owner, path)
            else:
                self.nodes[path] = before
                parent.children[name] = None
                self._own(before.owner, path)
            parent.creates, parent.pzxid = of_parent

    # Reading

    def read(self, path: str) -> Node:
        """Return data and stat. Raises: NoNodeError."""
        node = self._get(path)
        return Node(node.data, node.stat())

    def read_many(self, paths: tuple[str, ...]) -> list[Node | None]:
        """Return several znodes; None for each that does not exist."""
        found = [self.nodes.get(path) for path in paths]
        return [None if node is None else Node(node.data, node.stat()) for node in found]

    def children(self, path: str) -> list[str]:
        """Return the names of the children. Raises: NoNodeError."""
        return list(self._get(path).children)

    def exists(self, path: str) -> Stat:
        """Return the stat. Raises: NoNodeError."""
        return self._get(path).stat()

    def _get(self, path: str) -> Znode:
        node = self.nodes.get(path)
        if node is None:
            raise NoNodeError(path)
        return node


def check_path(path: str) -> None:
    """Refuse an invalid path. Raises: ServerError."""
    usual = path.isascii() and path.isprintable() and "/." not in path and "//" not in path and path[-1:] != "/"
    if not usual and path != "/" and (has_odd_parts(path) or not fits_path(path)):
        raise ServerError(BAD_ARGUMENTS, path)


def _next_version(version: int) -> int:
    """Increment a version as servers do since 3.9.2: in 32 bits, and never to -1, which stands for any."""
    if version == LAST_VERSION:
        return -LAST_VERSION - 1
    return 0 if version == ANY_VERSION - 1 else version + 1
