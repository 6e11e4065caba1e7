"""Reads and actions of operators, and the clean-up. No put, take or commit passes through here."""
