"""The write path: documents become passages, states, records, a store."""
