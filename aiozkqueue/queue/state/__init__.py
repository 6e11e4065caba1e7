"""A session's knowledge of a queue: its configuration, its lanes, and the claims on its items."""
