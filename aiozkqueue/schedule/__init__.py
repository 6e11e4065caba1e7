"""Recurring jobs and notifications, built on `aiozkqueue.queue`.

- `cron` computes the times: expressions, time zones, missed occurrences. Pure.
- `wall_clock` finds the moments at which the clock of a zone shows a time. Pure.
- `jobs` keeps the jobs: add, declare, change, pause, remove, list.
- `scheduler` puts each occurrence's message, exactly once among any number of schedulers.

- `notifications`: events for a date, found by search keys.
- `search` compares keys and dates of notifications. Pure.

Recurring jobs need the extra ``schedule``: ``pip install aiozkqueue[schedule]``.
"""

from __future__ import annotations

from .jobs import Job, Jobs
from .notifications import Notification, NotificationQueue, Notifications
from .scheduler import Scheduler

__all__ = ["Job", "Jobs", "Notification", "NotificationQueue", "Notifications", "Scheduler"]
