"""Clocks, timers, tasks, deadlines and large sets of names, for every layer above the client."""
