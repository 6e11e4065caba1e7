"""Redelivery: counted attempts, and locks that expire."""
