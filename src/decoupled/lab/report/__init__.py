"""Results as one self-contained page: figures, their tables, and the command of each."""
