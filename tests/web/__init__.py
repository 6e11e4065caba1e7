"""Queues within a web framework's application, on a real ZooKeeper and, where the wire matters, a real server."""
