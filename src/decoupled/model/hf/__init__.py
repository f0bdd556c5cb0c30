"""Hugging Face checkpoints ↔ (spec, weights).

`checkpoint` finds and reads files, `convert` turns them into ours and back. A family is described in one file
(`bert`, `modernbert`, `deberta`): its configs, its heads, the names of its tensors.
"""
