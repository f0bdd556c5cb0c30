"""Which maps keep codes of 4 bits, two in a byte: their shape does not tell how many inputs they have."""

from __future__ import annotations

from collections.abc import Iterator

from decoupled.forms import LinearSpec
from decoupled.spec import EncoderSpec


def packed_maps(spec: EncoderSpec) -> dict[str, int]:
    """The inputs of each such map, by its name."""
    return {name: inputs for found in map(_of_form, _maps(spec)) for name, inputs in found}


def _maps(spec: EncoderSpec) -> Iterator[tuple[str, LinearSpec, int]]:
    """Name, form and inputs of every map of the layers."""
    for layer in spec.layers:
        place, form = f"stack.attention.{layer.attention_slot}.attention", layer.attention_maps
        for one in ("query", "key", "value", "relative_key", "relative_query"):
            yield f"{place}.{one}", form, spec.width
        yield f"{place}.out", form, layer.attention.heads * layer.attention.head_width
        place, form = f"stack.ffn.{layer.ffn_slot}", layer.ffn_maps
        for one in ("up", "gate"):
            yield f"{place}.{one}", form, spec.width
        yield f"{place}.down", form, layer.ffn.width


def _of_form(found: tuple[str, LinearSpec, int]) -> list[tuple[str, int]]:
    name, form, inputs = found
    if form.bits != 4:
        return []
    if form.rank is None:
        return [(name, inputs)]
    return [(f"{name}.first", inputs), (f"{name}.second", form.rank)]
