"""DeLighT (Mehta et al., 2021): layers of group linear units with one narrow head."""
