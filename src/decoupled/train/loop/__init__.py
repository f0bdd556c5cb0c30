"""The one training loop, with what a step, a pass and a checkpoint are."""
