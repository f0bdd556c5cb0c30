"""Smaller forms of the parts: coded and thin matrices, narrow token tables, fixed patterns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import decoupled
from decoupled.errors import SpecError
from decoupled.methods.bands.part import Banded
from decoupled.methods.fixed_heads import module as patterns
from decoupled.methods.fixed_heads.part import PATTERNS, FixedPatterns
from decoupled.methods.quantise.module import QuantisedLinear, encode, pack, unpack
from decoupled.model.jsonable import from_json, to_json
from decoupled.model.nn.encoder import positions
from decoupled.model.nn.frame import Frame
from decoupled.model.nn.linear import build_linear
from decoupled.model.parts.linear import LinearSpec
from decoupled.model.spec import ModelSpec

# Old folders -------------------------------------------------------------------------------------


def test_fields_that_came_later_are_not_written_at_their_default(model):
    spec = model("bert", "rank").spec
    plain = json.dumps(to_json(spec))
    for name in ("attention_maps", "ffn_maps", '"table"', '"bits"', '"chunk"'):
        assert name not in plain, "older folders and fingerprints would change"
    changed = replace(spec, encoder=replace(spec.encoder, chunk=8))
    assert from_json(ModelSpec, to_json(changed)) == changed != spec


def test_the_starter_model_describes_itself_as_before():
    path = Path(decoupled.__file__).parent / "assets" / "starter" / "spec.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    written.pop("format")
    assert to_json(from_json(ModelSpec, written)) == written


# Codes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("group", [0, 5])
def test_codes_are_within_half_a_step_and_coding_again_changes_nothing(bits, group):
    weight = torch.randn(7, 12, generator=torch.Generator().manual_seed(0))
    codes, scale = encode(weight, bits, group)
    wide = scale.repeat_interleave(group or 12, 1)[:, :12]
    back = codes * wide
    assert ((weight - back).abs() <= wide / 2 + 1e-7).all()
    again, _ = encode(back, bits, group)
    assert torch.equal(again, codes)
    assert encode(torch.zeros(2, 3), bits)[0].abs().sum() == 0, "zero stays zero"
    by_row = (weight - back).square().sum()
    whole = encode(weight.reshape(1, -1), bits)
    by_matrix = (weight.reshape(1, -1) - whole[0] * whole[1]).square().sum()
    assert by_row <= by_matrix * 1.05, "a scale per row is no worse than one for all"


def test_packed_codes_come_back():
    codes = torch.randint(-7, 8, (3, 9), generator=torch.Generator().manual_seed(1)).to(torch.int8)
    assert torch.equal(unpack(pack(codes), 9), codes) and pack(codes).shape == (3, 5)


@pytest.mark.parametrize("inputs", ["dynamic", "static"])
def test_the_integer_product_is_the_product_of_what_the_codes_stand_for(inputs):
    draw = torch.Generator().manual_seed(2)
    module = build_linear(LinearSpec(bits=8, inputs=inputs), 24, 10)
    assert isinstance(module, QuantisedLinear)
    codes, scale = encode(torch.randn(10, 24, generator=draw), 8)
    state = {"codes": codes, "scale_OG": scale, "bias": torch.randn(10, generator=draw)}
    if inputs == "static":
        state["input_scale"] = torch.tensor([0.02])
    module.load_state_dict(state)
    x = torch.randn(2, 5, 24, generator=draw)
    step = x.abs().amax(-1, keepdim=True) / 127 if inputs == "dynamic" else torch.tensor(0.02)
    rounded = (x / step).round().clamp(-127, 127) * step
    with torch.no_grad():
        expected = F.linear(rounded, codes * scale, state["bias"])
        torch.testing.assert_close(module(x), expected, rtol=1e-5, atol=1e-5)
        assert module(x[:1, :1]).shape == (1, 1, 10)


def test_forms_that_cannot_be():
    with pytest.raises(SpecError, match="rank 0; choose 1 or more"):
        LinearSpec(rank=0)
    with pytest.raises(SpecError, match="one scale per row"):
        LinearSpec(bits=8, group=4, inputs="dynamic")
    with pytest.raises(SpecError, match="9 patterns for 8 heads"):
        FixedPatterns(heads=8, head_width=4, patterns=("left",) * 9)
    with pytest.raises(SpecError, match="a width for each band"):
        Banded(sizes=(3, 4), widths=(2,))


@pytest.mark.parametrize("shape", [(24, 16), (24, 10), (23, 16)])
def test_a_matrix_of_codes_is_built_with_places_for_all_of_them(shape):
    """Of a static range too: one step for all inputs, 1 until it is known."""
    module = build_linear(LinearSpec(bits=4, inputs="float"), *shape)
    assert {n: (tuple(t.shape), t.dtype) for n, t in module.state_dict().items()} == {
        "codes": ((shape[1], -(-shape[0] // 2)), torch.uint8),
        "scale_OG": ((shape[1], 1), torch.float32),
        "bias": ((shape[1],), torch.float32),
    }
    static = build_linear(LinearSpec(bits=8, inputs="static"), *shape, bias=False)
    assert isinstance(static, QuantisedLinear) and static.bias is None
    assert static.input_scale.tolist() == [1.0] and static(torch.ones(2, shape[0])).shape[0] == 2


# Patterns ----------------------------------------------------------------------------------------


def frame_of(*rows: str) -> Frame:
    """A frame of rows such as `xx..xxx.`, where dots are padding."""
    real = torch.tensor([[c == "x" for c in row] for row in rows])
    return Frame(positions(real), real)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("empty", ["clamp", "zero"])
def test_the_linear_path_is_the_matrix(pattern, empty):
    frame = frame_of("xx..xxxxx.", "xxxxxxxxxx", "x.........")
    v = torch.randn(3, 1, 10, 4, generator=torch.Generator().manual_seed(3))
    fast = patterns.apply([pattern], v, frame, empty)[:, 0]
    slow = patterns.matrix(pattern, frame, empty) @ v[:, 0]
    real = frame.real_BT
    torch.testing.assert_close(fast[real], slow[real], rtol=1e-5, atol=1e-6)


def test_rows_are_distributions_and_mirrors_are_mirrors():
    frame = frame_of("xxxxxxx")
    dense = {name: patterns.matrix(name, frame)[0] for name in PATTERNS}
    for name, weights in dense.items():
        assert (weights >= 0).all(), name
        torch.testing.assert_close(weights.sum(1), torch.ones(7))
    for one, other in (("left", "right"), ("end", "start"), ("previous", "next")):
        torch.testing.assert_close(dense[one], dense[other].flip(0, 1))
    # Equation of the paper: row i of `left` is (j+1)³ over j ≤ i-2, normalised.
    row = torch.tensor([1.0, 8.0, 27.0]) / 36
    torch.testing.assert_close(dense["left"][4, :3], row)
    assert dense["left"][4, 3:].sum() == 0


@pytest.mark.parametrize("pattern", PATTERNS)
def test_padding_changes_no_real_row(pattern):
    v = torch.randn(1, 1, 6, 3, generator=torch.Generator().manual_seed(4))
    alone = patterns.apply([pattern], v, frame_of("xxxxxx"), "clamp")
    wide = torch.full((1, 1, 9, 3), 7.0)
    wide[:, :, [0, 1, 4, 5, 6, 7]] = v
    padded = patterns.apply([pattern], wide, frame_of("xx..xxxx."), "clamp")
    torch.testing.assert_close(padded[:, :, [0, 1, 4, 5, 6, 7]], alone)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_blocks_are_sequences_of_their_own(pattern):
    v = torch.randn(1, 1, 9, 3, generator=torch.Generator().manual_seed(5))
    joint = frame_of("xxxxxxxxx")
    joint.block_BT = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1]])
    together = patterns.apply([pattern], v, joint, "clamp")
    first = patterns.apply([pattern], v[:, :, :4], frame_of("xxxx"), "clamp")
    second = patterns.apply([pattern], v[:, :, 4:], frame_of("xxxxx"), "clamp")
    torch.testing.assert_close(together, torch.cat([first, second], 2))


def test_long_sequences_keep_their_precision():
    frame = frame_of("x" * 512)
    v = torch.randn(1, 1, 512, 2, generator=torch.Generator().manual_seed(6))
    for name in ("left", "right", "start", "end"):
        fast = patterns.apply([name], v, frame, "clamp")[:, 0]
        slow = patterns.matrix(name, frame).double() @ v[:, 0].double()
        torch.testing.assert_close(fast.double(), slow, rtol=1e-4, atol=1e-5)
