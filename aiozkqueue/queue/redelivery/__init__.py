"""What happens to a message that was delivered and not finished."""
