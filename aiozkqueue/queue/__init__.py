"""The queue itself: sessions, transactions, consumers and listeners.

What lives here, from the bottom up (imports run one way, downwards; a test sees to it):

``lanes`` ``conflicts`` ``folders``   what a queue's configuration means: the lane of the next put, what excludes what
``clock`` ``tasks`` ``crew`` ``deadlines`` ``patience`` ``background`` ``run``   time, and what runs beside the caller
``codec`` ``options`` ``outcome`` ``destination`` ``connection_state`` ``middleware``   what callers say and are told
``candidates``   what could be taken: items seen and not claimed, their order, and what tells of new ones
``access``       what a caller is told whom an ACL refuses
``logs``         what records of the log carry beside their words
``meter``        what a session counts, if anybody wants to know
``tracing``      who follows messages on their way, if anybody
``store``        one queue as this session knows it: paths, configuration and its version, creation on first use
``claim``        an item locked by us, and the cap on a session's locks
``message``      what users read
``commits``      all-or-nothing changes, each exactly once: what they consist of, and how they share multis
``puts``         a value on its way into a queue
``claims``       from candidates to messages that this session holds
``operators``    looking into queues, and changing what lies in them
``upkeep``       clean-up, by one session at a time
``hand_over``    the step from a claim to a message that a handler sees
``work``         one unit of work: claims and puts, decided together; transactions and deliveries are faces of it
``taking``       how a transaction comes by its messages
``ahead``        what a loop has claimed ahead
``transaction`` ``delivery`` ``consumer`` ``listener`` ``leases`` ``ledger`` ``staging`` ``queue``    the public faces
``foreign``      queues of other programs, by their dialect
``engine``       the machinery of one session, shared by all faces
``session``      the rest of the public API
``connecting``   opens a session, and closes it

Data comes in by `Queue.put` and `Transaction.put`, goes out by `Transaction.take`, `Queue.consume` and listeners.
Nothing here knows aiozk; everything goes through `aiozkqueue.zookeeper.ZooKeeper`.
"""
