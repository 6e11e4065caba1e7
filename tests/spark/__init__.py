"""The data pipeline on Spark: real Spark in local mode, a real ZooKeeper."""
