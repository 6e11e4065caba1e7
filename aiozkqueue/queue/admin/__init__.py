"""What operators read and do, and the clean-up. Nothing here is on a message's way."""
