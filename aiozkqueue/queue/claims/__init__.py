"""From candidates to messages that this session holds: locked, read under the lock, dispensed to who waits."""
