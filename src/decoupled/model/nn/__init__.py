"""The encoder in torch, built from a spec. Knows nothing of files or text.

Shape suffixes: B batch, T tokens, R rows that are computed, D width, H heads, K head width,
Q query tokens, P passage tokens.
"""

from importlib import import_module
from pkgutil import walk_packages

# The builders choose among what the file of each kind registered.
for _file in walk_packages(__path__, f"{__name__}."):
    import_module(_file.name)
