"""Pure: which items a consumer could claim, and in which order. Each module is one feature."""
