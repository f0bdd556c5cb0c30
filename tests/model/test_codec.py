"""Codecs: what is lost, what is not, and that a token's bytes depend on that token alone."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file, save_file

from decoupled.errors import InputError, WeightsError
from decoupled.model.codec import (
    Codec,
    CodeLayout,
    Projection,
    build_codec,
    fit_codec,
    needs_fit,
    parse_codec,
)
from decoupled.model.codec.base import check_reach, float_tensor
from decoupled.model.states import Encoded, States

WIDTH = 24
NAMES = [
    "fp32",
    "fp16",
    "int8",
    "int8:64",
    "int4",
    "project:10+fp32",
    "project:10+fp16",
    "project:10+int8",
    "project:9+int4",
]


def states_like(tokens: int, *, width: int = WIDTH, seed: int = 0, texts: int = 5) -> States:
    """Clustered vectors with a decaying spectrum and a mean, cut into texts, one of them empty."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(np.random.default_rng(99).normal(size=(width, width)))[0]
    clusters = np.random.default_rng(98).normal(size=(12, width)) * 2
    values = rng.normal(size=(tokens, width)) + clusters[rng.integers(0, 12, tokens)]
    values = (values * 0.85 ** np.arange(width)) @ basis + np.linspace(-1, 1, width)
    cuts = np.sort(rng.integers(0, tokens + 1, texts - 2))
    lengths = np.diff(np.concatenate([[0], cuts, [tokens]]))
    return States(values.astype(np.float32), np.insert(lengths, 1, 0).astype(np.int64))


@pytest.fixture(scope="module")
def sample() -> States:
    return states_like(3000)


@pytest.fixture(scope="module")
def fitted(sample: States) -> dict[str, Codec]:
    return {name: fit_codec(name, sample, seed=3) for name in NAMES}


def squared_error(made: Codec, states: States) -> float:
    restored = made.decode(made.encode(states))
    return float(np.square(restored.values - states.values).sum(axis=1).mean())


# Names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_its_own_canonical_form(name: str, fitted: dict[str, Codec]) -> None:
    assert "+".join(map(str, parse_codec(name))) == name
    assert fitted[name].name == name


def test_spelling_is_forgiven() -> None:
    assert parse_codec(" Project:096 + INT8 ") == parse_codec("project:96+int8")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("int9", "there is no 'int9'; known are fp32, fp16, int8, int8:64, int4, and project:W"),
        ("int9", "Examples: int8, project:96\\+int8"),
        ("", "there is no ''; known are"),
        ("int8:4", "there is no 'int8:4'"),
        ("project:96", "ends with a projection.*write project:96\\+int8"),
        ("project+int8", "'project' lacks the width of its output; write for example project:96"),
        ("project:0+int8", "lacks the width"),
        ("project:-3+int8", "lacks the width"),
        ("project:²+int8", "lacks the width"),
        ("residual:2", "there is no 'residual:2'"),
        ("int8+fp16", "has int8 before its end, but a quantiser comes last"),
        ("project:9+project:5+int4", "projects 2 times.*write project:5\\+int4"),
    ],
)
def test_a_wrong_name_says_what_is_right(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_codec(name)


@pytest.mark.parametrize("name", NAMES)
def test_needs_fit_is_having_tensors(name: str, fitted: dict[str, Codec]) -> None:
    assert needs_fit(name) == bool(fitted[name].tensors())


# Bytes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "width", "expected"),
    [
        ("fp16", 768, 230_400),  # 225 KiB
        ("fp32", 768, 460_800),
        ("int8", 384, 57_900),
        ("int8:64", 384, 59_400),
        ("project:192+int8", 768, 29_100),
        ("project:96+int8", 384, 14_700),
        ("project:96+int4", 384, 7_500),
        ("project:64+fp16", 384, 19_200),
    ],
)
def test_bytes_of_a_passage_of_150_tokens(name: str, width: int, expected: int) -> None:
    rng = np.random.default_rng(0)
    sample = States(rng.normal(size=(300, width)).astype(np.float32), np.array([300]))
    made = fit_codec(name, sample)
    states = States(sample.values[:150], np.array([150]))
    assert made.encode(states).values.nbytes == 150 * made.bytes_per_token == expected


@pytest.mark.parametrize(
    ("name", "vector", "expected"),
    [
        ("fp32", [1.0, -2.0], "0000803f 000000c0"),
        ("fp16", [1.0, -2.0], "003c 00c0"),
        ("int8", [127, -64, 0, 1], "7f c0 00 01 003c"),
        ("int8", [0, 0, 0], "00 00 00 0004"),
        ("int8:64", [127] + 63 * [0] + [-254], "7f" + 63 * "00" + "81 003c 0040"),
        ("int4", [7, -7, 0, 1, 3], "1f 98 0b 003c"),
    ],
)
def test_the_format_does_not_drift(name: str, vector: list[float], expected: str) -> None:
    states = States(np.array([vector], np.float32), np.array([1]))
    encoded = fit_codec(name, states).encode(states)
    assert encoded.values.tobytes().hex() == expected.replace(" ", "")


@pytest.mark.parametrize("name", NAMES)
def test_the_layout_is_enough_to_decode(
    name: str, fitted: dict[str, Codec], sample: States
) -> None:
    made = fitted[name]
    encoded = made.encode(sample)
    by_hand = [decode_by_hand(row.tobytes(), made.layout) for row in encoded.values[:40]]
    np.testing.assert_allclose(made.decode(encoded).values[:40], by_hand, atol=2e-5)


def decode_by_hand(token: bytes, layout: CodeLayout) -> np.ndarray:
    """One token, one coordinate at a time: what a runtime may rely on."""
    z = np.zeros(layout.width)
    codes = token[layout.codes_at :]
    scale = 1.0
    if layout.scale_at is not None:
        scale = float(np.frombuffer(token, "<f2", 1, layout.scale_at)[0])
    for i in range(layout.width):
        match layout.kind:
            case "fp32" | "fp16":
                z[i] = np.frombuffer(codes, "<f4" if layout.kind == "fp32" else "<f2")[i]
            case "int8" | "int8:64":
                z[i] = np.frombuffer(codes, "i1")[i] * scale
            case "int4":
                z[i] = ((codes[i // 2] >> (4 * (i % 2)) & 15) - 8) * scale
    return z if layout.restore is None else z @ layout.restore.matrix + layout.restore.bias


# What is lost -------------------------------------------------------------------------------------

finite_rows = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 6), st.integers(1, 9)),
    elements=st.one_of(
        st.floats(-8e6, 8e6, width=32, allow_subnormal=False),
        st.floats(-4, 4, width=32, allow_subnormal=False),
        st.floats(-(2.0**-20), 2.0**-20, width=32, allow_subnormal=False),
        st.just(0.0),
    ),
)


def one_text(values: np.ndarray) -> States:
    return States(values, np.array([len(values)]))


@settings(deadline=None)
@given(finite_rows)
def test_fp32_loses_nothing(values: np.ndarray) -> None:
    states = one_text(values)
    made = fit_codec("fp32", states)
    np.testing.assert_array_equal(made.decode(made.encode(states)).values, values)


@settings(deadline=None)
@given(finite_rows)
def test_fp16_rounds_to_11_bits(values: np.ndarray) -> None:
    states = one_text(values / np.float32(200))
    made = fit_codec("fp16", states)
    encoded = made.encode(states)
    restored = made.decode(encoded)
    bound = np.abs(states.values) * 2.0**-11 + 2.0**-25
    assert (np.abs(restored.values - states.values) <= bound).all()
    np.testing.assert_array_equal(made.encode(restored).values, encoded.values)


@settings(max_examples=100, deadline=None)
@given(finite_rows, st.sampled_from([("int8", 127), ("int4", 7)]))
def test_integers_err_by_half_a_step_and_only_once(
    values: np.ndarray, kind: tuple[str, int]
) -> None:
    name, steps = kind
    # int4 reaches 7 × 65504 only.
    states = one_text(values if name == "int8" else values / np.float32(20))
    made = fit_codec(name, states)
    encoded = made.encode(states)
    restored = made.decode(encoded)
    step = np.maximum(np.abs(states.values).max(axis=1, keepdims=True) / steps, 2.0**-14)
    # fp16 rounds the step by at most one part in 2048.
    assert (np.abs(restored.values - states.values) <= step * 0.5 * (1 + 2.0**-10)).all()
    np.testing.assert_array_equal(made.encode(restored).values, encoded.values)


def test_zeros_come_back_as_zeros() -> None:
    states = one_text(np.zeros((3, 8), np.float32))
    for name in ("fp32", "fp16", "int8", "int4"):
        made = fit_codec(name, states)
        assert not made.decode(made.encode(states)).values.any()


@settings(deadline=None)
@given(finite_rows, st.sampled_from([np.nan, np.inf, -np.inf]), st.data())
def test_states_must_be_finite(values: np.ndarray, bad: float, data: st.DataObject) -> None:
    at = tuple(data.draw(st.integers(0, n - 1)) for n in values.shape)
    values[at] = bad
    lengths = np.array([0, at[0], len(values) - at[0]])
    states = States(values, lengths)
    for name in ("fp32", "fp16", "int8", "int4"):
        with pytest.raises(InputError, match="states of text 2 are not finite at token 0"):
            fit_codec(name, states).encode(states)


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("fp16", 7e4, "6.55e\\+04"),
        ("int8", 1e7, "8.32e\\+06"),
        ("int8:64", 1e7, "8.32e\\+06"),
        ("int4", 1e6, "4.59e\\+05"),
    ],
)
def test_a_value_out_of_reach_is_refused(name: str, value: float, limit: str) -> None:
    states = one_text(np.array([[1.0, -value]], np.float32))
    with pytest.raises(
        InputError, match=f"states reach .*{name} holds at most {limit}; use.* fp32"
    ):
        fit_codec(name, states).encode(states)


@pytest.mark.parametrize("name", ["project:10+fp32", "project:10+int8"])
def test_an_overflowing_product_is_refused(name: str, fitted: dict[str, Codec]) -> None:
    states = one_text(np.full((2, WIDTH), 3e38, np.float32))
    with pytest.raises(InputError, match="holds at most"):
        fitted[name].encode(states)


def test_what_is_no_number_is_out_of_reach_too() -> None:
    with pytest.raises(InputError, match="states reach nan, but int8 holds at most"):
        check_reach(np.array([1, np.nan], np.float32), np.float32(9), "int8")


# Projection ---------------------------------------------------------------------------------------


def orthogonal_pair(width: int) -> Projection:
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(width, width)))[0].astype(np.float32)
    zeros = np.zeros(width, np.float32)
    return Projection(down_weight=turn, down_bias=zeros, up_weight=turn.T, up_bias=zeros)


@pytest.mark.parametrize("learned", [True, False])
def test_a_projection_of_full_width_is_the_identity(sample: States, learned: bool) -> None:
    pair = orthogonal_pair(WIDTH) if learned else None
    made = fit_codec(f"project:{WIDTH}+fp32", sample, projection=pair)
    restored = made.decode(made.encode(sample))
    np.testing.assert_allclose(restored.values, sample.values, atol=1e-5)


@pytest.mark.parametrize("width", [1, 10, 23])
def test_pca_loses_the_discarded_eigenvalues(sample: States, width: int) -> None:
    made = fit_codec(f"project:{width}+fp32", sample)
    spectrum = np.linalg.eigvalsh(np.cov(sample.values.T.astype(np.float64), bias=True))
    discarded = spectrum[: WIDTH - width].sum()
    assert squared_error(made, sample) == pytest.approx(discarded, rel=1e-4)


def test_a_learned_pair_is_used_as_given(sample: States) -> None:
    rng = np.random.default_rng(1)
    down, up = rng.normal(size=(7, WIDTH)), rng.normal(size=(WIDTH, 7))
    down_bias, up_bias = rng.normal(size=7), rng.normal(size=WIDTH)
    pair = Projection(
        down_weight=down.astype(np.float32),
        down_bias=down_bias.astype(np.float32),
        up_weight=up.astype(np.float32),
        up_bias=up_bias.astype(np.float32),
    )
    expected = (sample.values @ down.T + down_bias) @ up.T + up_bias
    for name, rotated in (("project:7+fp32", False), ("project:7+int4", True)):
        made = fit_codec(name, sample, projection=pair)
        assert made.layout.restore is not None
        same_basis = np.allclose(made.layout.restore.matrix, up.T, atol=1e-6)
        assert same_basis != rotated
        restored = made.decode(made.encode(sample)).values
        off = np.linalg.norm(restored - expected) / np.linalg.norm(expected)
        assert off < (0.1 if rotated else 1e-6)


def test_the_rotation_serves_int4() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2000, 64)).astype(np.float32)
    values[:, 3] *= 20
    states = one_text(values)
    rotated = squared_error(fit_codec("project:64+int4", states), states)
    assert rotated < 0.5 * squared_error(fit_codec("int4", states), states)


def test_a_projection_that_does_not_fit_is_refused(sample: States) -> None:
    with pytest.raises(
        WeightsError, match=r"down_weight' .* shape \[24, 24\], expected \[10, 24\]"
    ):
        fit_codec("project:10+int8", sample, projection=orthogonal_pair(WIDTH))
    with pytest.raises(InputError, match="no place for a projection; write project:24\\+int8"):
        fit_codec("int8", sample, projection=orthogonal_pair(WIDTH))
    with pytest.raises(InputError, match="projects to 25, but the states are 24 wide"):
        fit_codec("project:25+int8", sample)


def test_a_sample_that_does_not_serve_is_refused(sample: States) -> None:
    with pytest.raises(InputError, match="fitted on 7 tokens, but needs at least 10"):
        fit_codec("project:10+int8", states_like(7))
    with pytest.raises(InputError, match="not finite at token 1"):
        fit_codec("project:2+int8", one_text(np.array([[1, 2], [np.nan, 1]], np.float32)))
    with pytest.raises(InputError, match=r"shape \[0\], expected \[tokens, width\]"):
        fit_codec("int8", States(np.zeros(0, np.float32), np.zeros(0, np.int64)))


def test_tensors_of_a_codec_are_of_the_expected_shape() -> None:
    some = np.ones((2, 3), np.float32)
    assert float_tensor({"a": some}, "a", (2, 3)).shape == (2, 3)
    for wrong in (some[:0], some[:, :2], some[0]):
        with pytest.raises(WeightsError, match=r"expected \[2, 3\]; was it made for another"):
            float_tensor({"a": wrong}, "a", (2, 3))


# Batches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_batch_mates_change_no_byte(name: str, fitted: dict[str, Codec]) -> None:
    made = fitted[name]
    values = states_like(1500, seed=2).values
    states = States(values, np.array([1, 0, 300, 17, 256, 2, 700, 1, 223]))
    together = made.encode(states)
    np.testing.assert_array_equal(together.lengths, states.lengths)
    order = np.random.default_rng(0).permutation(len(states))
    shuffled = made.encode(states.select(order))
    for place, i in enumerate(order):
        alone = made.encode(one_text(np.asarray(states[i])))
        np.testing.assert_array_equal(alone.values, together[i])
        np.testing.assert_array_equal(shuffled[place], together[i])


@pytest.mark.parametrize("name", NAMES)
def test_lengths_survive_and_nothing_is_nothing(
    name: str, fitted: dict[str, Codec], sample: States
) -> None:
    made = fitted[name]
    restored = made.decode(made.encode(sample))
    assert 0 in sample.lengths
    np.testing.assert_array_equal(restored.lengths, sample.lengths)
    assert restored.values.shape == sample.values.shape
    empty = States(np.zeros((0, WIDTH), np.float32), np.zeros(2, np.int64))
    encoded = made.encode(empty)
    assert encoded.values.shape == (0, made.bytes_per_token)
    assert made.decode(encoded).values.shape == (0, WIDTH)


@pytest.mark.parametrize("name", NAMES)
def test_encoding_leaves_its_input_alone(
    name: str, fitted: dict[str, Codec], sample: States
) -> None:
    before = sample.values.copy()
    encoded = fitted[name].encode(sample)
    fitted[name].decode(Encoded(read_only(encoded.values), encoded.lengths))
    np.testing.assert_array_equal(sample.values, before)


def read_only(values: np.ndarray) -> np.ndarray:
    copy = values.copy()
    copy.flags.writeable = False
    return copy


def test_other_widths_are_refused(fitted: dict[str, Codec]) -> None:
    made = fitted["project:10+int8"]
    with pytest.raises(InputError, match=r"shape \[3, 8\], but this .* made for width 24"):
        made.encode(one_text(np.zeros((3, 8), np.float32)))
    with pytest.raises(InputError, match="12 bytes a token; decode them with the codec"):
        made.decode(Encoded(np.zeros((3, 26), np.uint8), np.array([3])))


@pytest.mark.parametrize("name", ["int8", "project:8+int8", "project:8+int4"])
def test_scratch_memory_is_bounded(name: str) -> None:
    states = states_like(60_000, width=16)
    made = fit_codec(name, states_like(600, width=16))
    encoded = made.encode(states)
    for work, kept in (
        (lambda: made.encode(states), encoded.values.nbytes),
        (lambda: made.decode(encoded), states.values.nbytes),
    ):
        tracemalloc.start()
        result = work()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(result.values) == 60_000
        assert peak - kept < 1_500_000  # the states themselves are 3.8 MB


# Saving -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_loading_is_the_inverse_of_saving(
    name: str, fitted: dict[str, Codec], sample: States, tmp_path
) -> None:
    made = fitted[name]
    save_file(made.tensors(), tmp_path / "codec.safetensors")
    loaded = build_codec(made.name, width=WIDTH, tensors=load_file(tmp_path / "codec.safetensors"))
    encoded = made.encode(sample)
    assert (loaded.name, loaded.width, loaded.bytes_per_token) == (
        made.name,
        made.width,
        made.bytes_per_token,
    )
    np.testing.assert_array_equal(loaded.encode(sample).values, encoded.values)
    np.testing.assert_array_equal(loaded.decode(encoded).values, made.decode(encoded).values)


@pytest.mark.parametrize("name", ["project:10+int8", "project:10+int4"])
def test_a_fit_is_repeatable(name: str, sample: States) -> None:
    first, second, other = (fit_codec(name, sample, seed=s).tensors() for s in (4, 4, 5))
    assert list(first) == list(second)
    assert all((first[key] == second[key]).all() for key in first)
    if name != "project:10+int8":
        assert any((first[key] != other[key]).any() for key in first)


def test_damaged_tensors_are_refused(fitted: dict[str, Codec]) -> None:
    name = "project:10+int8"
    good = fitted[name].tensors()

    def load_with(**changed: np.ndarray | None) -> None:
        merged = good | {key.replace("__", "."): value for key, value in changed.items()}
        tensors = {key: value for key, value in merged.items() if value is not None}
        build_codec(name, width=WIDTH, tensors=tensors)

    load_with()
    with pytest.raises(WeightsError, match=r"lacks the tensor 'project\.up_bias'"):
        load_with(project__up_bias=None)
    with pytest.raises(WeightsError, match="no use for the tensors extra, more"):
        load_with(extra=np.zeros(1, np.float32), more=np.zeros(1, np.float32))
    with pytest.raises(WeightsError, match="is float64, expected finite float32"):
        load_with(project__up_bias=good["project.up_bias"].astype(np.float64))
    with pytest.raises(WeightsError, match="expected finite float32"):
        load_with(project__up_bias=np.full(WIDTH, np.nan, np.float32))
    with pytest.raises(WeightsError, match=r"shape \[10, 24\], expected \[10, 25\]"):
        build_codec(name, width=25, tensors=good)
    with pytest.raises(InputError, match="width=0"):
        build_codec("int8", width=0, tensors={})


def test_codecs_do_without_torch() -> None:
    code = "import sys, decoupled.model.codec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
