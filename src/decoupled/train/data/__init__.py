"""Pairs → tokenised examples → batches on a device."""
