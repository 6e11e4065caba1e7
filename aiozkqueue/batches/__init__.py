"""Batches for Spark: repeatable batches from a queue, and batches to a queue that become visible as a whole."""
