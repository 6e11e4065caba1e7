"""Time and tasks for every layer above the client. No module here knows queues.

``clock``              the injected clock, ZooKeeper's time, and timers that many deadlines share
``deadline`` ``reply_limit``   one limit for several waits, and for a reply that must come in time
``ticks`` ``brake``      periodic checks, and pauses between tries that are refused
``tasks`` ``task_pool``   the tasks that a session owns, and tasks that are reused
``exception_groups``   the exceptions inside of groups
``strings``            very many names, without long pauses of the event loop
``sizes``              the size of messages that the servers accept
``histogram``          the distribution of observed values, for metrics
``acl_errors``         refusals of an ACL as errors that name the queue
"""
