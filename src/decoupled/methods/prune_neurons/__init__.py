"""Pruning of feed-forward neurons."""
