"""Unstructured pruning: the smallest weights become zero."""
