"""Replies to calls: a handler's reply, stored by its commit below the client that waits for it.

`reply` is the part of the handler's commit. `given_up` answers calls that no handler will answer. `calls` waits for
replies in the session that has called. The package imports commits, the client and the layout. Sessions use it.
"""
