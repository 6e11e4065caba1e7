"""An outbox: rows that a program commits to its SQL database go into the queue exactly once.

AIOZKQUEUE_HOSTS=127.0.0.1:2181 python examples/outbox.py shop.db relay   # start several: one works, one is on standby
python examples/outbox.py shop.db order teapot
aiozkqueue consume orders --follow

A program that writes to its database and then puts to a queue may die between the two, which leaves an order without a
message. So it writes the message to the database, too, in the same SQL transaction, and a relay puts it.

Why exactly once: the relay's position, the *cursor*, is itself a message. One transaction of the queue takes the
cursor, puts the rows after it, and puts the cursor back with the last row's number, all or nothing. However a relay
ends, the next one takes the cursor as it is, and continues after the rows that are in the queue. Two relays cannot hold
the cursor at once, and a relay that was declared dead cannot commit. Rows are deleted only after the cursor has passed
them, so every deleted row has been put.

The database must meet two conditions: rows are numbered in the order in which they become visible (SQLite has one
writer at a time; elsewhere read only rows older than the oldest open transaction), and numbers are never reused.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from contextlib import closing

import aiozkqueue as zq

BATCH = 100
SCHEMA = """
create table if not exists orders (id integer primary key, article text not null);
create table if not exists outbox (id integer primary key autoincrement, body text not null);
"""


def order(database: str, article: str) -> None:
    """Store an order and its message in one SQL transaction, as the program does."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.executescript(SCHEMA)
        row = connection.execute("insert into orders (article) values (?)", (article,)).lastrowid
        connection.execute("insert into outbox (body) values (?)", (json.dumps({"id": row, "article": article}),))


def behind(database: str, cursor: int) -> list[tuple[int, str]]:
    """Delete the rows up to the cursor, and read the rows after it."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.executescript(SCHEMA)
        connection.execute("delete from outbox where id <= ?", (cursor,))
        rows = connection.execute("select id, body from outbox where id > ? order by id limit ?", (cursor, BATCH))
        return rows.fetchall()


async def relay(session: zq.QueueSession, database: str) -> None:
    """Put the messages of the outbox, forever."""
    orders, cursors = session.queue("orders"), session.queue("outbox", int)
    # The first relay creates the cursor. Its key is in use as long as a cursor exists, held or not.
    await cursors.put(0, key="cursor", unique="ignore")
    while True:
        try:
            async with session.transaction() as tx:
                cursor = await tx.take(cursors, timeout=None)
                if cursor is None:
                    continue
                while not (rows := await asyncio.to_thread(behind, database, cursor.value)):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)  # SQLite does not report new rows; PostgreSQL would, by LISTEN
                for _, body in rows:
                    tx.put(orders, body.encode())
                tx.put(cursors, rows[-1][0], key="cursor", unique=True)
        except zq.NotCommittedError as error:
            print(f"{error}; once more", file=sys.stderr)
        else:
            print(f"put up to row {rows[-1][0]}", flush=True)


async def main(database: str) -> None:
    """Relay until interrupted."""
    async with zq.connect(os.environ.get("AIOZKQUEUE_HOSTS", "127.0.0.1:2181")) as session:
        await relay(session, database)


if __name__ == "__main__":
    if sys.argv[2] == "order":
        order(sys.argv[1], sys.argv[3])
    else:
        asyncio.run(main(sys.argv[1]))
