"""What earlier versions of the layout have stored is read, taken and settled by the code of today.

- `stories` says what a program has stored, and what a program of today finds of it: one story a feature.
- `trees` writes a server's znodes down, and puts them on another server as they were.
- `generate` makes a version's dump, once: `fixtures/v<n>.json` is never made again by later code.
"""
