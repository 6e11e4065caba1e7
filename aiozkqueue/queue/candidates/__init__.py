"""Which items a consumer could claim, and in which order. Only modules that are marked *pure* send no requests.

``backlog``            the candidates of one priority; ``priorities`` has one for each
``partition``          the share of each consumer
``collectors`` ``chains``   what is kept of a listing while it arrives
``watches`` ``tag_records``   the watches of an idle consumer, and the records of tags
``past_hours``         removes the folders of past hours, for ``delay``

The other modules are features: ``batches``, ``delay``, ``filters``, ``foreign`` and ``groups``.
"""
