"""E-mail with retries and dead letters: an unreachable mail server is retried, an invalid address is not.

AIOZKQUEUE_HOSTS=127.0.0.1:2181 SMTP=127.0.0.1:25 python examples/mail.py
aiozkqueue put mail '{"to": "ann@example.com", "subject": "Hello", "text": "How are you?"}'
aiozkqueue dlq list mail        # unsent mails, with the reason
aiozkqueue dlq redrive mail     # after the cause has been fixed

A message is sent at least once: a process that dies between the server's "250 OK" and the commit sends it again. Each
attempt therefore has the same Message-ID, so servers and readers can detect copies.
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
    """A mail to send."""

    to: str
    subject: str
    text: str


def send(mail: Mail, message_id: str) -> None:
    """Send a mail to the server. Blocks, so it runs in a thread."""
    message = EmailMessage()
    message["Message-ID"] = f"<{message_id}@example.com>"
    message["From"], message["To"], message["Subject"] = "shop@example.com", mail.to, mail.subject
    message.set_content(mail.text)
    host, _, port = SMTP.rpartition(":")
    with smtplib.SMTP(host, int(port), timeout=30) as server:
        server.send_message(message)


async def deliver(delivery: zq.Delivery[Mail]) -> None:
    """Send one mail. Errors raised here are retried after the policy's delay; `Reject` is final."""
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
    """Send until SIGTERM: up to eight attempts, the last about two minutes after the first."""
    policy = zq.ConsumeTimes(8, backoff=zq.Exponential(initial=1, maximum=60))
    async with zq.connect(os.environ.get("AIOZKQUEUE_HOSTS", "127.0.0.1:2181")) as session:
        await zq.run(session.listener(session.queue("mail", Mail, policy=policy), deliver, concurrency=4))


if __name__ == "__main__":
    asyncio.run(main())
