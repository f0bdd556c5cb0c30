"""Transformer-XH (Zhao et al., 2020): linked passages are read together and exchange what they know."""
