"""Reformer's attention (Kitaev et al., 2020): tokens see those that hash to the same bucket."""
