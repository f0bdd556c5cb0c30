"""The attention of a decoder, causal and to its source: for sequence-to-sequence models."""
