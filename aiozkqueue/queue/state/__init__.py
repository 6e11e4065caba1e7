"""A session's knowledge of a queue, and of the messages that it holds.

``queue_state``        the queue as a session knows it: its names, and the repairs that its writes need
``stored_queue``       its basis: opens and creates the queue, changes its configuration, keeps its `QueueSnapshot`
``snapshot``           the configuration as last read, with the hooks of the queue's features
``config_rules``       which settings conflict; ``znodes`` creates and removes the queue's znodes
``lanes`` ``missing_lanes`` ``lane_requests`` ``generations``   the lanes of new items: chosen, created, and replaced
``claim``              an item that this session has locked, and the session's budget of locks
``bundle_hold`` ``bundle_setup``   a bundle that this session has locked, and what a queue needs for bundles
``hooks``              the interfaces by which later stages take part in a queue's writes
``given_up``           alarms for messages that are given up
"""
