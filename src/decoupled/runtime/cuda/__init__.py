"""The fast path for NVIDIA GPUs: packed rows without padding, fused kernels, graphs for small batches.

`runtime` is what the rest of the program sees. `weights` arranges a model for it, `batch` says which
rows belong to which pair, `staging` sends them, `layers` is the arithmetic, `ops` and `kernels` are its
steps (in plain torch, and in Triton where there is a GPU), `graphs` replays batches, `block` keeps passages
on the device, and a query that is `pending` is read with them.
"""
