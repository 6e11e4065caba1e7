"""The Spark data source, with a real Spark in local mode and a real ZooKeeper."""
