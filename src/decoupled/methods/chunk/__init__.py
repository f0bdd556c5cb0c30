"""Less memory without another result: feed-forward maps in chunks, activations computed again."""
