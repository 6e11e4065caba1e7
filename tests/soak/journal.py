"""The records of each client, a line each in its own file, and the history that all files make together.

A line is handed to the kernel by one write before the client goes on, so that a SIGKILL loses none; only the loss of
the machine would, and no soak loses that. Times are of the monotonic clock, which all processes of a machine share.
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

#: Stands for a ZooKeeper session that the client knew to be over when it showed the message.
OVER = 0


class Journal:
    """A file that is only ever appended to."""

    def __init__(self, path: Path, client: str) -> None:
        self.client = client
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._units = 0
        self._tokens = 0

    def write(self, event: str, **fields: object) -> None:
        line = json.dumps({"event": event, "at": time.monotonic(), **fields}, separators=(",", ":"))
        os.write(self._file, f"{line}\n".encode())

    def token(self) -> str:
        """A body that no other message has."""
        self._tokens += 1
        return f"{self.client}:{self._tokens}"

    def unit(self, program: str) -> Record:
        self._units += 1
        return Record(self, f"{self.client}/{program}/{self._units}")

    def trouble(self, what: str) -> None:
        self.write("trouble", what=f"{self.client}: {what}")


class Record:
    """Writes of one unit of work."""

    def __init__(self, journal: Journal, name: str) -> None:
        self._journal = journal
        self._name = name
        self._release_unseen = False
        self.takes = 0
        self.puts = 0
        self.decided = False

    def put(self, queue: str, *tokens: str) -> None:
        """Before the put is sent."""
        self.puts += len(tokens)
        self._journal.write("put", unit=self._name, queue=queue, tokens=tokens)

    def show(self, token: str, queue: str, session: int) -> None:
        """When the handler has the message."""
        self.takes += 1
        self._journal.write("show", unit=self._name, token=token, queue=queue, session=session)

    def reject(self, token: str) -> None:
        self._journal.write("reject", unit=self._name, token=token)

    def keep(self, token: str) -> None:
        self._journal.write("keep", unit=self._name, token=token)

    def release_unseen(self) -> None:
        """Before the first request that could end the claims."""
        if self.takes and not self._release_unseen:
            self._release_unseen = True
            self._journal.write("let go", unit=self._name)

    def end(self, status: Status, why: str = "") -> None:
        self.decided = True
        if self.takes or self.puts:
            self._journal.write("end", unit=self._name, status=status.name, why=why)


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """All events of a file; what a kill cut short is no line."""
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def merge(paths: Iterable[Path]) -> History:
    """The history that these clients saw."""
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
            pass  # a beginning, which the unit itself stands for


def resolve(history: History) -> int:
    """Decide by their effects what its client never learnt: what it put is there, or is not. How many stay open.

    All or nothing: one put that has been seen proves the commit, and then the checker wants to see all of it.
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
