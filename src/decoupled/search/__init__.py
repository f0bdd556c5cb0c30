"""The read path, in the order of a query."""
