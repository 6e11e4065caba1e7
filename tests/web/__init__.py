"""Queues in web applications, with a real ZooKeeper and, if the socket matters, a real web server."""
