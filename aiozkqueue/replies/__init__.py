"""Replies to calls: a handler's answer, stored by its commit below the client that waits for it.

`answer` is the part of the handler's commit. `calls` waits for answers in the session that has called. The package
imports commits, the client and the layout. Sessions use it.
"""
