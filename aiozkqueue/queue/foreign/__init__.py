"""Queues of other programs: their dialect in the place of our layout, our machinery for all else."""
