"""All-or-nothing writes, each applied exactly once."""
