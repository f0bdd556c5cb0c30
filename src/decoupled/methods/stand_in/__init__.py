"""Stand-in rows: what a text is read beside below the split, in place of the other text of its pair."""
