"""Longer windows: the table of positions is repeated as often as they need."""
