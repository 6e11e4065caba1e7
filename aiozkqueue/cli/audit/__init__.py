"""`aiozkqueue audit`: the command, and its report as a table, as JSON and as an HTML page (`page`, `plots`)."""
