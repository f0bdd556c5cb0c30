"""Compressive Transformer (Rae et al., 2020): windows see the ones before, older ones compressed."""
