"""Pruning of attention heads (Michel et al., 2019)."""
