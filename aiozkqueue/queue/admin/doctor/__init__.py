"""The doctor: it examines a queue and says what is wrong with it."""
