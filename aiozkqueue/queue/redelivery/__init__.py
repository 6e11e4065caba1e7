"""The end of a wait: ``timed_locks`` removes locks whose time is over, and ``bundles`` dissolves bundles into items."""
