"""The parts of an encoder as frozen data, a file per kind: what each is made of and what it costs."""

from importlib import import_module
from pkgutil import walk_packages

# A description may name any kind, so all files are read: a kind is known because it has one.
for _file in walk_packages(__path__, f"{__name__}."):
    import_module(_file.name)
