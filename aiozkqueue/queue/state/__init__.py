"""What a session knows about a queue: its configuration, its lanes and the claims on its items."""
