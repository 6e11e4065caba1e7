"""How a candidate becomes a message that this session holds."""
