"""Cron: a recurring job, put once by any number of schedulers, and handled by one worker. Needs the extra `schedule`.

AIOZKQUEUE_HOSTS=127.0.0.1:2181 python examples/cron.py "*/10 * * * * *"     # start several
aiozkqueue jobs list

An occurrence is a message like any other: it is retried when its handler fails, and waits if no worker is running.
If no scheduler was running, the missed occurrences are made up for; here, only the newest one is put.
"""

from __future__ import annotations

import asyncio
import os
import sys

import aiozkqueue as zq
from aiozkqueue.schedule import Jobs, Scheduler


async def report(delivery: zq.Delivery[str]) -> None:
    """Stand-in for the work."""
    print(f"{delivery.value} of {delivery.headers['occurrence']}", flush=True)


async def main(cron: str) -> None:
    """Declare the job, which is the same in every process, and serve until SIGTERM."""
    async with zq.connect(os.environ.get("AIOZKQUEUE_HOSTS", "127.0.0.1:2181")) as session:
        reports = session.queue("reports", str)
        await Jobs(session).declare("report", cron, reports, "report", zone="Europe/Berlin", missed="last")
        await zq.run(Scheduler(session), session.listener(reports, report))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "0 0 3 * * *"))
