"""Queues in an application of a web framework, on a real ZooKeeper and, where the socket matters, a real server."""
