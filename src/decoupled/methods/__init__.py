"""The annex: the systems of the sources beside the split, a folder each; `model/annex.py` lists them."""
