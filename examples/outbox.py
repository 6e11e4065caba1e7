"""An outbox: what a program commits to its SQL database goes into the queue exactly once.

AIOZKQUEUE_HOSTS=127.0.0.1:2181 python examples/outbox.py shop.db relay   # start several: one works, one stands by
python examples/outbox.py shop.db order teapot
aiozkqueue consume orders --follow

A program that writes to its database and then puts to a queue may die between the two: the order is there, and no
message. So the message is written to the database, too, in the same SQL transaction, and a relay puts it.

Why exactly once. Where the relay stands, the *cursor*, is itself a message. One transaction of the queue takes it, puts
the rows behind it, and puts it back with the last row's number: all of that happens, or none of it. Whatever a relay
knows of its own end, the next one takes the cursor as it is, and goes on behind what is in the queue. Two relays cannot
hold the cursor at once, and one that was taken for dead commits nothing. Rows are deleted only when the cursor that was
taken is past them, so a row that is gone has been put.

Two things this asks of the database: rows are numbered in the order in which they become visible (SQLite has one writer
at a time; elsewhere read only rows older than the oldest open transaction), and their numbers are never used again.
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
    """What the program does: an order and its message, in one SQL transaction."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.executescript(SCHEMA)
        row = connection.execute("insert into orders (article) values (?)", (article,)).lastrowid
        connection.execute("insert into outbox (body) values (?)", (json.dumps({"id": row, "article": article}),))


def behind(database: str, cursor: int) -> list[tuple[int, str]]:
    """Delete the rows up to the cursor, and read what comes behind it."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.executescript(SCHEMA)
        connection.execute("delete from outbox where id <= ?", (cursor,))
        rows = connection.execute("select id, body from outbox where id > ? order by id limit ?", (cursor, BATCH))
        return rows.fetchall()


async def relay(session: zq.QueueSession, database: str) -> None:
    """Put what is in the outbox, for ever."""
    orders, cursors = session.queue("orders"), session.queue("outbox", int)
    # The first relay of all makes the cursor. Its key is taken as long as there is one, in whatever hands.
    await cursors.put(0, key="cursor", unique="ignore")
    while True:
        try:
            async with session.transaction() as tx:
                cursor = await tx.take(cursors, timeout=None)
                if cursor is None:
                    continue
                while not (rows := await asyncio.to_thread(behind, database, cursor.value)):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)  # SQLite tells nobody of new rows; PostgreSQL would, by LISTEN
                for _, body in rows:
                    tx.put(orders, body.encode())
                tx.put(cursors, rows[-1][0], key="cursor", unique=True)
                await tx.commit()
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
