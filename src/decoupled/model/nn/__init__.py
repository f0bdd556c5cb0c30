"""The encoder in torch, built from a spec. Knows nothing of files or text.

Shape suffixes: B batch, T tokens, R rows that are computed, D width, H heads, K head width,
Q query tokens, P passage tokens.
"""
