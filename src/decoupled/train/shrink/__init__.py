"""Make a model smaller: one file per method, folded in the written order by `shrink.shrink`."""
