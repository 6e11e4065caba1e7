"""Clocks, timers, tasks, deadlines, lock budgets and large sets of names, for every layer above the client."""
