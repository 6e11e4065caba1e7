"""The jars of an Apache ZooKeeper server, in the folder ``jars`` of this package."""
