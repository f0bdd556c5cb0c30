"""A reduced vocabulary: only the tokens that a corpus needs."""
