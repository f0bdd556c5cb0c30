"""Lite Transformer (Wu et al., 2020): half of the columns attend, half are convolved."""
