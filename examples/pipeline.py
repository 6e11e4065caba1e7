"""A pipeline: each order becomes an invoice, in one transaction. You can run any number of them.

AIOZKQUEUE_HOSTS=127.0.0.1:2181 python examples/pipeline.py
aiozkqueue put orders '{"id": 1, "cents": 990}'
aiozkqueue consume invoices --follow
"""

from __future__ import annotations

import asyncio
import os

from pydantic import BaseModel

import aiozkqueue as zq


class Order(BaseModel):
    """An order."""

    id: int
    cents: int


class Invoice(BaseModel):
    """An invoice."""

    order: int
    cents: int
    tax: int


async def main() -> None:
    """Turn orders into invoices until interrupted."""
    async with zq.connect(os.environ.get("AIOZKQUEUE_HOSTS", "127.0.0.1:2181")) as session:
        orders = session.queue("orders", Order)
        invoices = session.queue("invoices", Invoice)
        async with orders.consume() as deliveries:
            async for delivery in deliveries:
                async with delivery:
                    order = delivery.value
                    if order.cents <= 0:
                        # The order becomes a dead letter with this reason; the loop continues.
                        await delivery.reject("nothing to pay")
                        continue
                    invoice = Invoice(order=order.id, cents=order.cents, tax=order.cents * 19 // 100)
                    invoice_id = delivery.put(invoices, invoice)
                print(f"order {order.id} -> invoice {invoice_id}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
