"""The queue itself: sessions, transactions, consumers and listeners.

What lives here, from the bottom up (imports run one way, downwards):

``plan``         what a put that is not plain adds to its create
``clock``        where time comes from: the injected clock, and the server's time as seen through it
``options``      what callers pass: seconds, put options, prefetch; checked before anything is sent
``codec``        values to payloads and back
``tasks``        the task group a session owns; waiting that outlives cancellations
``store``        one queue as this session knows it: paths, configuration and its version, creation on first use
``claim``        an item locked by us, and the cap on a session's locks
``message``      what users read: messages, dead ones too
``slot``         a commit slot, and the fate of the multis sent under it
``settlement``   one all-or-nothing change, and how to wait for its fate
``committer``    settlements (all-or-nothing changes) sent under commit slots, each exactly once
``settlements``  which operations a put, an attempt, a commit, a release and a dead letter are
``backlog``      candidates to claim: pure
``idle`` ``reaper`` ``registration``   watches and timers; locks that have ended; the registry of consumers
``lookout``      where the next candidates are: listings, watches and timers
``claimer``      from candidates to claims
``dispenser``    claims for all waiting takers of one session and queue
``work``         one unit of work: claims and puts, decided together; transactions and deliveries are faces of it
``transaction`` ``delivery`` ``consumer`` ``listener`` ``run``    the public faces
``dead_letters`` ``admin`` ``queue`` ``session``   the rest of the public API

Data comes in by `Queue.put` and `Transaction.put`, goes out by `Transaction.take`, `Queue.consume` and listeners.
Nothing here knows aiozk; everything goes through `aiozkqueue.zookeeper.ZooKeeper`.
"""
