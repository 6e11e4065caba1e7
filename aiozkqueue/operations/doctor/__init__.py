"""The doctor: it examines queues and reports problems."""
