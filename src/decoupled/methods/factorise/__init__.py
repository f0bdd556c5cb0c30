"""Factorised embeddings (ALBERT, Lan et al., 2020): the token table as a product of two."""
