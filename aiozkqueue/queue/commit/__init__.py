"""All-or-nothing writes, each applied exactly once.

An `AtomicWrite` consists of *parts*: each adds its operations, handles their refusals, and learns the outcome.

``group_commit``       the committer: sends the writes that are ready in few multis, and settles them
``multi``              which waiting writes share a multi, and the operations of that multi
``slot``               sends a multi until it is known whether it was applied
``write``              `AtomicWrite`, `Part`, and `Composition`: the operations of one multi, with their handlers
``repairs`` ``refusals`` ``failures``   after a refusal: repair and resend, operations with the same cause, errors

The parts:

``create_items``       puts; ``put`` is one of them, ``put_plan`` its additions, and ``bundle_puts`` stores many in one
``end_claims`` ``release_claims``   the ends of claims, in a commit and after a failure; ``bundles`` for bundles
``dispositions``       how a claim ends, and with which operations
``attempts`` ``orphan_locks``   the record of an attempt, and the removal of a lock
``alterations`` ``conditional`` ``register``   changes that apply only to the data just read
``unclaimed``          the items that such changes read without a claim
``capacity`` ``history`` ``unique_keys`` ``foreign``   features of the queue

``runtime`` is the interface of a session, ``handle`` is a queue in that session, and ``meter`` counts events.
"""
