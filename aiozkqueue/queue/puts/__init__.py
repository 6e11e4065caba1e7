"""A value on its way into a queue: where it is put, what goes beside it in its multi, and whether there is room."""
