"""Watches that are added and removed while the client sets its watches again on a new connection."""

from __future__ import annotations

import asyncio
import struct

from aiozkqueue.testing import Opcode
from aiozkqueue.zookeeper import EventKind, State, WatchEvent, connect
from tests.integration.zookeeper.scripted_server import Peer, ScriptedServer, connected, frame, reply

_MANY = 400  # of 1,000 bytes each, more than fit into two requests
CREATED = EventKind.CREATED.value


async def test_watches_can_be_added_and_removed_while_thousands_are_set_again() -> None:
    setting, changed = asyncio.Event(), asyncio.Event()
    opcodes = list[int]()

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(1, timeout=60_000))
        while True:
            xid, opcode = await peer.request()
            if peer.number == 1 and opcode == Opcode.EXISTS:
                peer.drop()
                return
            if peer.number == 2:
                opcodes.append(opcode)
            if opcode == Opcode.SET_WATCHES2 and not setting.is_set():
                setting.set()
                await changed.wait()
            peer.send(reply(xid, body=bytes(80)))

    async with ScriptedServer(script) as server:
        zk = await connect(server.hosts, session_timeout=60)
        names = [f"/{number:0>1000}" for number in range(_MANY)]
        watches = [await zk.watch(name, lambda _event: None) for name in names]
        read = asyncio.create_task(zk.exists("/"))
        await setting.wait()
        added = asyncio.create_task(zk.watch("/added", lambda _event: None))
        for watch in watches[-2:]:
            watch.cancel()
        await asyncio.sleep(0)
        changed.set()
        await asyncio.wait_for(asyncio.gather(read, added), 30)
        assert zk.state is State.CONNECTED
        assert opcodes.count(Opcode.SET_WATCHES2) == 4
        assert opcodes[-2:].count(Opcode.ADD_WATCH) == 1
        await zk.close()


def event(kind: int, path: str) -> bytes:
    """Return the frame of a notification."""
    return frame(struct.pack(">iqiiii", -1, -1, 0, kind, 3, len(path)) + path.encode())


async def test_a_watch_reports_missed_events_before_any_event_of_a_new_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(1, timeout=60_000))
        while True:
            xid, opcode = await peer.request()
            if peer.number == 1 and opcode == Opcode.EXISTS:
                peer.drop()
                return
            peer.send(reply(xid, body=bytes(80)))
            if opcode == Opcode.SET_WATCHES2:  # znodes were created both before and after the server set the watches
                peer.send(event(CREATED, "/items/3"))
            elif peer.number == 2 and opcode == Opcode.EXISTS:
                peer.send(event(CREATED, "/items/4"))

    async with ScriptedServer(script) as server:
        zk = await connect(server.hosts, session_timeout=60)
        events: asyncio.Queue[WatchEvent] = asyncio.Queue()
        await zk.watch("/items", events.put_nowait, recursive=True)
        await zk.exists("/")
        received = [await asyncio.wait_for(events.get(), 30) for _ in range(2)]
        assert received == [WatchEvent(EventKind.MISSED, "/items"), WatchEvent(EventKind.CREATED, "/items/4")]
        await zk.close()
