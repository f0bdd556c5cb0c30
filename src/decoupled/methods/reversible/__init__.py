"""Reversible layers (Kitaev et al., 2020): inputs are computed back from outputs."""
