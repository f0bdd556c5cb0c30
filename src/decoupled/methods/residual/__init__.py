"""The codec `residual`: the nearest centroid and a few bits for what is left (ColBERTv2)."""
