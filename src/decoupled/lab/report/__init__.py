"""Results as one self-contained page: figures that answer to the mouse, tables, and the command of each."""
