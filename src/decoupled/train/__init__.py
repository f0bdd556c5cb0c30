"""Training: one loop for fine-tuning and distilling, its data, losses, recipes and metrics.

Shape suffixes: B pairs of a batch, Q query tokens, P passage tokens, T both, D width, H heads, K head width,
G groups of a batch, N groups that share a distribution, C classes.
"""
