"""Quantised weights: int8 or int4 codes, after training or while training."""
