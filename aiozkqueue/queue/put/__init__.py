"""The preparation of puts: from a value to the operations that store it. Each module is one feature."""
