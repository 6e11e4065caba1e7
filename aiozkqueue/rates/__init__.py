"""Limits on how many calls of handlers begin in a second: shared by all sessions, or of one listener.

`timeline` keeps a shared limit in ZooKeeper (docs/design/46-rates.md). `pace` determines when the next call of a
listener may begin. The package imports the client, the clock and the layout. Listeners use it.
"""
