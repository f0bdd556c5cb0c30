"""How components execute. One protocol, several engines, the same numbers from each."""
