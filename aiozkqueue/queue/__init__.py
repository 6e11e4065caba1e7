"""The queue: sessions, transactions, consumers and listeners.

The folder is the stage of a message's way and the file is the feature; a feature has the same name in every stage.
Imports run downwards in this map, and `tests/unit/test_layers.py` checks it. From the top:

``connect``            opens a session and closes it
``session``            `QueueSession`, where users begin
``foreign_queue`` ``foreign_shards``   queues of other programs, as users hold them
``queue``              `Queue`
``consumer`` ``listener`` ``middleware``   loops and handlers
``transaction`` ``delivery`` ``leases``   how a message is held
``internals``          what schedules, buses, HTTP, Spark and metrics use of a session and a queue
``take``               how a transaction gets its messages
``unit_of_work``       claims and puts that are decided together: the state machine of a transaction
``batches``            repeatable batches out of a queue, and batches that become visible as a whole; for Spark
``background`` ``run``   services, and what runs them
``session_core``       builds what a session consists of, and closes it
``foreign``            a queue in another program's layout
``admin``              what operators read and do, and the clean-up; nothing on a message's way
``claim``              a candidate becomes a message that this session holds
``put``                a value on its way into a queue
``commit``             all-or-nothing writes, each applied exactly once
``state``              what a session knows of a queue: configuration, lanes, claims
``redelivery``         timed locks: the backoff and the lease of a message that was not finished
``candidates``         pure: what could be claimed, and in what order
``message`` ``options`` ``outcome`` ``codec`` ``destination`` ``tracing`` ``connection_state``   the words of callers
``runtime``            clocks, tasks, timers, deadlines and lock budgets; no word about queues

Data comes in by `Queue.put` and `Transaction.put` and goes out by `Transaction.take`, `Queue.consume` and listeners.
Nothing here knows aiozk: every request goes through `aiozkqueue.zookeeper.ZooKeeper`.
"""
