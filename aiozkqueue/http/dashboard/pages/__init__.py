"""The pages: one module for each, with the handler that shows it."""
