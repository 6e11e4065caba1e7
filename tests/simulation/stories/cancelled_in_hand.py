"""Messages that are cancelled before their handlers begin."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiozkqueue.testing.simulator import run_virtual
from tests.simulation.programs.cancelled_in_hand import HANDLED, IN_HAND, Cancelled, InHand, handle, take_the_rest
from tests.simulation.programs.keys import Action, outcome_of
from tests.simulation.stories import story
from tests.simulation.stories.acts import end
from tests.simulation.workload import LIMIT, Run

if TYPE_CHECKING:
    from aiozkqueue.listeners import Batch
    from tests.simulation.history import History


@story
def a_message_is_cancelled_while_its_batch_is_collected(seed: int | str) -> History:
    """A listener has claimed a message and waits for further ones when an operator cancels it."""

    async def main() -> History:
        run = Run(seed, size=1)
        run.disturbances.calm = True
        log, token = run.history.part(InHand), run.token()

        async def handler(batch: Batch[bytes]) -> None:
            tokens = [message.body.decode() for message in batch]
            await handle(run, "listener", tokens, lambda token: batch.put(HANDLED, token))

        async with run.cluster.connect(name="listener") as session, run.cluster.connect(name="operator") as operator:
            made = log.puts[token] = Action(run.loop.time())
            async with outcome_of(run, made):
                log.ids[token] = await operator.queue(IN_HAND).put(token.encode())
            async with session.listener(session.queue(IN_HAND), handler, batch=3, batch_wait=1, drain_timeout=None):
                await asyncio.sleep(run.random.random())
                cancellation = Cancelled(run.loop.time())
                log.cancelled[token] = [cancellation]
                async with outcome_of(run, cancellation):
                    cancellation.result = await operator.queue(IN_HAND).cancel(id=log.ids[token], running=True)
                await asyncio.sleep(2)
            await take_the_rest(run, operator)
            log.over = run.loop.time()
            await end(run)
        return run.history

    return run_virtual(main, limit=LIMIT)
