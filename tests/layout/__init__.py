"""The current code reads, takes and settles what each earlier version of the layout has stored.

- `stories` defines what a program has stored, and what the current code must find, in one story for each feature.
- `trees` dumps the znodes of a server, and restores them unchanged on another server.
- `generate` makes the dump of a version once; later code never makes `fixtures/v<n>.json` again.
"""
