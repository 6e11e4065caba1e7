"""Batches, which a listener with ``batch=`` passes to its handler."""

from __future__ import annotations

from aiozkqueue.session.batch import Batch

__all__ = ["Batch"]
