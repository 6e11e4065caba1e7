"""What nobody asked for and must happen all the same: clean-up, by one session at a time, every step idempotent."""
