"""`aiozkqueue report`: figures of a queue's history."""
