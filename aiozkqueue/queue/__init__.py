"""The work of a queue: a message from its put to its end.

A folder is a stage in the life of a message, and a file is a feature; a feature has the same name in every stage.
Imports run downwards in this map, and `tests/unit/test_layers.py` checks it. From the top:

``claim``              a candidate becomes a message that this session holds
``put``                turns a value into a put
``commit``             all-or-nothing writes, each applied exactly once
``state``              a session's knowledge of a queue: configuration, lanes, claims
``redelivery``         timed locks: the backoff and the lease of a message that was not finished
``candidates``         what could be claimed, and in what order; mostly pure
``message`` ``options`` ``outcome`` ``destination``   the types that callers use

Values enter through `put.prepare`, and messages leave through `claim.deliver`. `aiozkqueue.session` has the objects
that users hold. Nothing here knows aiozk: every request goes through `aiozkqueue.zookeeper.ZooKeeper`.
"""
