"""Cross-layer parameter sharing (ALBERT, Lan et al., 2020), and its opposite."""
