"""The data of the pages, and the cache by which all visitors share it."""
