"""Hugging Face checkpoints ↔ (spec, weights).

`checkpoint` finds and reads files; `families` turns a config into a spec and back, with `postnorm`,
`modernbert` and `deberta` for the kinds of encoders; `tables` holds the names of tensors and `shapes`
what a spec asks for; `convert` joins them.
"""
