"""Exits of depth-adaptive Transformers (Elbayad et al., 2020): candidates that are far behind stop early."""
