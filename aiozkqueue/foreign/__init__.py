"""Queues of other programs: their znodes and formats instead of ours, with the same code above."""
