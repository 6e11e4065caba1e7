"""The queue: sessions, transactions, consumers and listeners.

A folder is a stage in the life of a message, and a file is a feature; a feature has the same name in every stage.
Imports run downwards in this map, and `tests/unit/test_layers.py` checks it. From the top:

``connect``            opens a session and closes it
``session``            `QueueSession`, the entry point for users
``foreign_queue`` ``foreign_shards``   queues of other programs, as users hold them
``queue``              `Queue`
``consumer`` ``listener`` ``middleware``   loops and handlers
``transaction`` ``delivery`` ``leases``   how a message is held
``administration``     the tools of operators: `Queue.admin`, `QueueSession.admin`
``internals``          the parts of a session and a queue that schedules, buses, HTTP, Spark and metrics use
``take``               how a transaction gets its messages
``unit_of_work``       claims and puts that are decided together: the state machine of a transaction
``batches``            repeatable batches out of a queue, and batches that become visible as a whole; for Spark
``background`` ``run``   services, and what runs them
``session_core``       builds what a session consists of, and closes it
``foreign``            a queue in another program's layout
``admin``              tools for operators, and the clean-up; puts and takes use none of it
``claim``              a candidate becomes a message that this session holds
``put``                turns a value into a put
``commit``             all-or-nothing writes, each applied exactly once
``state``              a session's knowledge of a queue: configuration, lanes, claims
``redelivery``         timed locks: the backoff and the lease of a message that was not finished
``candidates``         pure: what could be claimed, and in what order
``message`` ``options`` ``outcome`` ``codec`` ``destination`` ``tracing`` ``connection_state``   the words of callers
``runtime``            clocks, tasks, timers, deadlines and lock budgets; independent of queues

Data enters through `Queue.put` and `Transaction.put`, and leaves through `Transaction.take`, `Queue.consume` and
listeners. Nothing here knows aiozk: every request goes through `aiozkqueue.zookeeper.ZooKeeper`.
"""
