"""What operators and dashboards ask of a queue, and do to it."""
