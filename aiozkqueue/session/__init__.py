"""A session and the objects that users get from it: queues, transactions, consumers and listeners.

These objects check their arguments and pass the work on to `aiozkqueue.queue`, where each stage in the life of a
message has a folder. Imports run downwards in this map, and `tests/unit/test_layers.py` checks it. From the top:

``connect``            opens a session and closes it
``session``            `QueueSession`, the entry point for users
``foreign_queue`` ``foreign_shards``   queues of other programs, as users hold them
``queue``              `Queue`
``batch_listener`` ``delivery_listener``   listeners that call a handler with batches, or with single deliveries
``consumer`` ``listener``   loops, and the life of a listener
``listener_options``   the options of listeners, and their checks
``middleware`` ``handler``   functions around a handler, and the checks and time limit of a handler
``batch``              several messages for one call of a handler
``delivery`` ``leases``   messages that are held without a transaction
``transaction``        puts and takes that take effect together, and how takes get their messages
``administration``     administration for operators: `Queue.admin`, `QueueSession.admin`
``undo``               the undoing of work after an error
``failures``           the errors of handlers and of settlements, and their log
``direct_puts``        puts outside a transaction, many at a time or in a bounded queue
``internals``          the parts of a session and a queue that schedules, buses, HTTP, Spark and metrics use
``unit_of_work``       claims and puts that are decided together: the state machine of a transaction
``releases``           how a unit of work that is undone releases its messages
``background`` ``run`` ``alarms``   services, their runners, and the callbacks for messages that are given up
``interruptions``      the cancellation of running handlers with their messages
``core``               `SessionCore`, called `runtime` elsewhere: builds the parts of a session, and closes them
``lane_ends``          opens the next generation of a lane whose counter nears its end
``late_writes``        writes whose callers have stopped waiting, and whose outcomes may be asked for
``left_open``          deliveries that loops have left to the program to settle
``credentials``        credentials from the environment or a file
``cancellations``      cancellations that come through a user's function
``connection_state`` ``work_state``   the states of the connection and of a unit of work
``block``              how a context manager is used, in the errors of its other uses
``tracing``            the tracer's interface

Data enters through `Queue.put` and `Transaction.put`, and leaves through `Transaction.take`, `Queue.consume` and
listeners.
"""
