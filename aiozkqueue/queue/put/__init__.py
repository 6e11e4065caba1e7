"""From a value to a put: check, encode, assign an id, and plan the operations. Each other module is one feature.

``prepare`` is the entry. A feature adds its part to the `PutPlan` of a put with its option (``delay``, ``groups``,
``filters``, ``ttl``), or to each put of a queue with its setting (``queue_defaults``, ``affinity``). ``capacity`` is
the gate of a bounded queue, and ``foreign`` prepares puts to queues of other programs.
"""
