"""The current code reads, takes and settles what each earlier version of the layout has stored.

- `stories` says what a program has stored, and what a program of today finds of it: one story a feature.
- `trees` writes a server's znodes down, and puts them on another server as they were.
- `generate` makes a version's dump, once: `fixtures/v<n>.json` is never made again by later code.
"""
