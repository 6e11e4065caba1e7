"""What could be taken: items seen and not claimed, the order they are taken in, and what tells of new ones.

Pure but for watches, timers and the registry of consumers; nothing here locks anything.
"""
