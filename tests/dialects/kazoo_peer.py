"""kazoo's queues in a separate process: each line on stdin is a command, a JSON list, and gets a line as its answer."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.recipe.queue import LockingQueue


def main(hosts: str, timeout: float) -> None:
    """Answer commands until stdin ends."""
    client = KazooClient(hosts, timeout=timeout)
    client.start()
    queues: dict[str, Any] = {}
    say("ready")
    for line in sys.stdin:
        command, path, *arguments = json.loads(line)
        if command == "reset":
            release_all(queues)
            say(None)
            continue
        if command == "session":
            identity: Any = client.client_id  # not None, since the client is connected
            say([identity[0], identity[1].hex()])
            continue
        if path not in queues:
            locking = path.endswith("locking")
            queues[path] = client.LockingQueue(path) if locking else client.Queue(path)
        queue: Any = queues[path]
        answer: object = None
        if command == "put":
            queue.put(bytes.fromhex(arguments[0]), arguments[1])
        elif command == "put_all":
            queue.put_all([bytes.fromhex(value) for value in arguments[0]], arguments[1])
        elif command == "get":
            got = queue.get(*arguments)
            answer = None if got is None else bytes(got).hex()
        elif command == "drain":
            answer = drain(queue, *arguments)
        elif command == "len":
            answer = len(queue)
        else:
            answer = getattr(queue, command)()
        say(answer)
    client.stop()
    client.close()


def release_all(queues: dict[str, Any]) -> None:
    """Release all held messages, and forget the queues."""
    for queue in queues.values():
        if isinstance(queue, LockingQueue):
            with suppress(NoNodeError):  # the test has removed the held message
                queue.release()
    queues.clear()


def say(answer: object) -> None:
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


def drain(queue: Any, timeout: float) -> list[str]:
    """Get and consume until no message has arrived for this many seconds."""
    bodies: list[str] = []
    while (got := queue.get(timeout)) is not None:
        if not queue.consume():
            raise RuntimeError("the lock was lost")
        bodies.append(bytes(got).hex())
    return bodies


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
