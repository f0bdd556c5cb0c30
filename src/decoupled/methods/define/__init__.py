"""DeFINE and DExTra as token tables (Mehta et al., 2020 and 2021): narrow rows under group linear layers."""
