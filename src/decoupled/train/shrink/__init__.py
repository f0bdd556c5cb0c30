"""Make a model smaller: methods, each a frozen dataclass, folded in the written order by `shrink.shrink`."""
