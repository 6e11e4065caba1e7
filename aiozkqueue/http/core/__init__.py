"""The parts that the API and the dashboard share.

``backend``            the sessions of a server, while they are open; it limits the time of each request
``service``            EmoDB's operations on a session; ``peeking`` shows messages, ``purging`` empties queues,
                       ``names`` and ``tokens`` convert names and message ids
``gate`` ``keys`` ``permissions`` ``origins``   who may do what
``bodies`` ``splitting`` ``inflating`` ``limits`` ``parameters``   requests, read in bounded steps
``trace_context``      the trace of a request, for its messages
``problems``           errors as responses; ``remedies`` states their remedies without Python
``shared_readings`` ``charts`` ``metrics``   figures, read once for all visitors
"""
