"""What has to hold in every history. A feature that makes a promise adds a module of its own here."""
