"""Fixed self-attention patterns (Raganato et al., 2020): most heads look where a pattern says."""
