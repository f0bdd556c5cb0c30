"""Experiments on models: what the layers do, where to split, what every split costs and keeps."""
