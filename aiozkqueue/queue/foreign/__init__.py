"""Queues of other programs: their znodes and formats in place of ours, with the same machinery above."""
