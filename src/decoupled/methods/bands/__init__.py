"""Frequency-dependent embedding width (Baevski and Auli, 2019): rarer tokens get narrower rows."""
