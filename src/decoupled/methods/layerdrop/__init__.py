"""LayerDrop (Fan et al., 2020): layers are left out while training, and any depth is extracted after it."""
