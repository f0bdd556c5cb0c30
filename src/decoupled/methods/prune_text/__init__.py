"""Passages pruned to the sentences that matter to a query, from heads that the model has anyway."""
