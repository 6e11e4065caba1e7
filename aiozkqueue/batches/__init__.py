"""Batches for Spark: repeatable ones out of a queue, and ones that become visible as a whole into it."""
