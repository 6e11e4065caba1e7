"""The end of a wait: ``timed_locks`` removes expired locks, and ``bundles`` dissolves bundles into items."""
