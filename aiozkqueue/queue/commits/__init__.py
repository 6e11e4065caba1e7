"""All-or-nothing changes, each applied exactly once: what they consist of, how they share multis, how each ended."""
