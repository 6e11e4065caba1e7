"""How a candidate becomes a message that this session holds, and is delivered.

Read it in this order. A taker waits in the `WaitQueue`; the dispatcher's loop serves it:

``dispatcher``         the loop: search, claim, assign, sleep
``waiters``            the takers that wait, in order of arrival; ``prefetch`` requests claims ahead of an ``async for``
``candidate_index``    the candidates that are known; ``watched_index`` adds those that watches report
``discovery``          searches for more: it lists lanes with ``lane_reader``, takes items of peers by
                       ``work_stealing``, and watches an idle queue
``claim_batches``      batches of claims in flight
``claimer``            one batch: create the locks, read the items under them
``deliver``            expiry, decoding, and the count of the attempt, before a caller gets a claim
``releases``           releases unwanted claims; ``undelivered`` ends those that must not be delivered, and
                       ``orphan_locks`` removes locks without a usable item
``groups`` ``group_lock``   messages of a group, in turn under one lock
``bundles`` ``bundle_claimer``   bundles that are held, and their claims
``collapse`` ``foreign`` ``pause``   compaction, items with several messages, and queues that are paused or absent
``registration``       the session's entry as a consumer
``services`` ``runtime``   the parts of a session that these modules use

A message that ends is reported to the dispatcher through `queue.state.hooks.ClaimListener`; commits do not know it.
"""
