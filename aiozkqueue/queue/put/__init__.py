"""A value on its way into a queue. Each module is one feature."""
