"""The records of each client, one line each in its own file, and the history that all files form together.

One write passes a line to the kernel before the client continues, so a SIGKILL loses no line. Times are those of the
monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tests.simulation.history import Delivery, History, Status, Unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

#: Stands for a ZooKeeper session that had already ended, as the client knew, when it showed the message.
OVER = 0


class Journal:
    """A file to which lines are only appended."""

    def __init__(self, path: Path, client: str) -> None:
        self.client = client
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._units = 0
        self._tokens = 0

    def write(self, event: str, **fields: object) -> None:
        line = json.dumps({"event": event, "at": time.monotonic(), **fields}, separators=(",", ":"))
        os.write(self._file, f"{line}\n".encode())

    def token(self) -> str:
        """Return a unique body."""
        self._tokens += 1
        return f"{self.client}:{self._tokens}"

    def unit(self, program: str) -> Record:
        self._units += 1
        return Record(self, f"{self.client}/{program}/{self._units}")

    def trouble(self, what: str) -> None:
        self.write("trouble", what=f"{self.client}: {what}")


class Record:
    """The records of one unit of work."""

    def __init__(self, journal: Journal, name: str) -> None:
        self._journal = journal
        self._name = name
        self._release_unseen = False
        self.takes = 0
        self.puts = 0
        self.decided = False

    def put(self, queue: str, *tokens: str) -> None:
        """Record puts, before they are sent."""
        self.puts += len(tokens)
        self._journal.write("put", unit=self._name, queue=queue, tokens=tokens)

    def show(self, token: str, queue: str, session: int) -> None:
        """Record that the handler has received the message."""
        self.takes += 1
        self._journal.write("show", unit=self._name, token=token, queue=queue, session=session)

    def reject(self, token: str) -> None:
        self._journal.write("reject", unit=self._name, token=token)

    def keep(self, token: str) -> None:
        self._journal.write("keep", unit=self._name, token=token)

    def release_unseen(self) -> None:
        """Record that the claims may end, before the first request that could end them."""
        if self.takes and not self._release_unseen:
            self._release_unseen = True
            self._journal.write("let go", unit=self._name)

    def end(self, status: Status, why: str = "") -> None:
        self.decided = True
        if self.takes or self.puts:
            self._journal.write("end", unit=self._name, status=status.name, why=why)


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield all events of a file, without a line that was cut off by a kill."""
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def merge(paths: Iterable[Path]) -> History:
    """Return the history that these clients observed."""
    history = History()
    units: defaultdict[str, Unit] = defaultdict(lambda: Unit(""))
    for path in paths:
        for line in lines(path):
            if line["event"] == "trouble":
                history.trouble.append(line["what"])
            elif "unit" in line:
                unit = units[line["unit"]]
                unit.client = line["unit"]
                _note(unit, line)
    history.units += units.values()
    history.sessions_over[OVER] = 0.0
    return history


def _note(unit: Unit, line: dict[str, Any]) -> None:
    match line["event"]:
        case "put":
            unit.puts |= dict.fromkeys(line["tokens"], line["queue"])
        case "show":
            unit.takes.append(Delivery(line["token"], line["queue"], unit.client, line["session"], line["at"]))
        case "reject":
            unit.rejects.add(line["token"])
        case "keep":
            unit.keeps.add(line["token"])
        case "let go":
            for delivery in unit.takes:
                delivery.until = line["at"]
        case "end":
            unit.status, unit.why, unit.decided = Status[line["status"]], line["why"], line["at"]
        case _:
            pass  # the unit itself stands for its beginning


def resolve(history: History) -> int:
    """Decide units whose outcome the client never learned by their effects: their puts are stored or not.

    One stored put proves the commit, and the checker then requires all of its effects. Returns how many stay undecided.
    """
    seen = set(history.deliveries())
    for tokens in (*history.final.items.values(), *history.final.dead.values()):
        seen.update(tokens)
    unresolved = 0
    for unit in history.units:
        if unit.status not in (Status.PENDING, Status.UNKNOWN):
            continue
        if unit.puts:
            unit.status = Status.COMMITTED if seen & unit.puts.keys() else Status.NOT_COMMITTED
            unit.why = "as its effects show"
        elif unit.takes:
            unresolved += 1
    return unresolved
