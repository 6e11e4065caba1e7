"""E-mail with retries and dead letters: a mail server that is away is tried again, an address that is none is not.

AIOZKQUEUE_HOSTS=127.0.0.1:2181 SMTP=127.0.0.1:25 python examples/mail.py
aiozkqueue put mail '{"to": "ann@example.com", "subject": "Hello", "text": "How are you?"}'
aiozkqueue dlq list mail        # what could not be sent, and why
aiozkqueue dlq redrive mail     # once the reason has been seen to

A message is sent at least once: a process that dies between the server's "250 OK" and the commit sends it again. So
each attempt has the same Message-ID, by which servers and readers know a copy.
"""

from __future__ import annotations

import asyncio
import os
import smtplib
from email.message import EmailMessage

from pydantic import BaseModel

import aiozkqueue as zq

SMTP = os.environ.get("SMTP", "127.0.0.1:25")
PERMANENT = 500


class Mail(BaseModel):
    """A mail to be sent."""

    to: str
    subject: str
    text: str


def send(mail: Mail, message_id: str) -> None:
    """Hand a mail to the server. Blocks, so it runs in a thread."""
    message = EmailMessage()
    message["Message-ID"] = f"<{message_id}@example.com>"
    message["From"], message["To"], message["Subject"] = "shop@example.com", mail.to, mail.subject
    message.set_content(mail.text)
    host, _, port = SMTP.rpartition(":")
    with smtplib.SMTP(host, int(port), timeout=30) as server:
        server.send_message(message)


async def deliver(delivery: zq.Delivery[Mail]) -> None:
    """Send one. What is raised here is tried again after the policy's delay; `Reject` is final."""
    try:
        await asyncio.to_thread(send, delivery.value, delivery.id)
    except smtplib.SMTPRecipientsRefused as error:
        ((code, text),) = error.recipients.values()
        if code >= PERMANENT:
            reason = f"{code} {text.decode()}"
            raise zq.Reject(reason) from error
        raise
    print(f"sent to {delivery.value.to}, attempt {delivery.attempt}", flush=True)


async def main() -> None:
    """Send until SIGTERM: eight tries, the last of them about two minutes after the first."""
    policy = zq.ConsumeTimes(8, backoff=zq.Exponential(initial=1, maximum=60))
    async with zq.connect(os.environ.get("AIOZKQUEUE_HOSTS", "127.0.0.1:2181")) as session:
        await zq.run(session.listener(session.queue("mail", Mail, policy=policy), deliver, concurrency=4))


if __name__ == "__main__":
    asyncio.run(main())
