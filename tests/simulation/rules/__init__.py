"""The rules that every history must keep. A feature that makes a promise adds a module here."""
