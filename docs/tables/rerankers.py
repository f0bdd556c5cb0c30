"""The table of public rerankers: what a split of each stores and computes, from its configuration alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from decoupled.measure.counts import work
from decoupled.model.codec import bytes_per_token
from decoupled.model.hf.convert import family_of
from decoupled.model.parts.prompt import Prompt
from decoupled.model.prompts import TEMPLATES, Template
from decoupled.model.spec import ModelSpec, TextSpec
from decoupled.model.split import with_split
from results import Table, read

QUERY, PASSAGE = 20, 150
"""Tokens, special ones among them."""
KNOWN: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("rerankers.json").read_text(encoding="utf-8")
)
"""Hub name, what its config.json says of the architecture, and `why` it cannot be split."""
TEXT = TextSpec(query_prefix=(1,), query_suffix=(2,), passage_prefix=(), passage_suffix=(2,))


def described(config: dict[str, Any], text: TextSpec = TEXT) -> ModelSpec:
    """The joint model of a configuration."""
    family = family_of(config["model_type"])
    heads = family.head(config, config["architectures"][0])
    return ModelSpec(family=family.name, encoder=family.encoder(config), heads=heads, text=text)


def sensible_split(layers: int) -> int:
    """Half of a shallow encoder, two thirds of a deep one: what distilling wins back nearly whole."""
    return max(1, layers // 2 if layers < 12 else 2 * layers // 3)


def rerankers() -> Table:
    """One row for each."""
    header = ["model", "<architecture", "<head", "layers", "width", "split at", "KB a passage"]
    header += ["MMACs joint", "MMACs split", "times fewer"]
    return header, [_row(one) for one in KNOWN if not {"why", "template"} & set(one)]


def prompted(template: Template) -> tuple[TextSpec, int, int]:
    """The order of a template, and the tokens of query and passage with its words around them."""
    query, passage = template.place("{query}"), template.place("{passage}")
    low, high = sorted((query, passage))
    # English words are one token each in vocabularies of this size, and so is a mark or a line's end.
    tokens = [
        len(re.findall(r"<\|\w+\|>|\w+|[^\w\s]|\n+", re.sub(r"{\w+}", "", piece)))
        for piece in template.pieces
    ]
    lead, tail = sum(tokens[:low]), sum(tokens[high + 1 :])
    between = sum(tokens[low + 1 : high])
    ends = (lead + between, tail) if query < passage else (between + tail, lead)
    first = "query" if query < passage else "passage"
    prompt = Prompt(first=first, query="{query}", passage="{passage}")
    own = QUERY + tokens[query] + ends[0], PASSAGE + tokens[passage] + ends[1]
    return replace(TEXT, prompt=prompt), *own


def decoders() -> Table:
    """What each way to store a passage of a decoder takes, and what a pair then costs."""
    header = ["model", "<first", "layers", "width", "MMACs joint", "<stored", "KB a passage"]
    header += ["MMACs a pair", "times fewer"]
    rows = []
    for one in KNOWN:
        if "template" not in one:
            continue
        text, query, passage = prompted(TEMPLATES[one["template"]])
        joint = described(one["config"], text)
        layers, width = len(joint.layers), joint.encoder.width
        whole = work(joint, query=query, passage=passage).whole()
        named = [f"`{one['name']}`", text.prompt.first, layers, width, f"{whole / 1e6:,.0f}"]
        ways = [(layers // 2, "state"), (3 * layers // 4, "state")]
        ways += [(layers, "kv")] if text.passage_first else []
        for at, store in ways:
            split = with_split(joint, at, store=store)
            # One scale for the keys and values of all layers loses their order (`measured_decoder`).
            codec = "int8" if store == "state" else "int8:64"
            stored = passage * bytes_per_token(codec, split.state_width("passage"))
            pair = work(split, query=query, passage=passage).cross
            what = f"state at {at}" if store == "state" else f"keys and values of all {layers}"
            figures = [what, f"{stored / 1000:,.0f}", f"{pair / 1e6:,.0f}", f"{whole / pair:.1f}"]
            rows.append([*named, *figures])
            named = [""] * len(named)
    return header, rows


def _row(one: dict[str, Any]) -> list[Any]:
    joint = described(one["config"])
    layers, width = len(joint.layers), joint.encoder.width
    split = with_split(joint, sensible_split(layers))
    whole = work(joint, query=QUERY, passage=PASSAGE).whole()
    online = work(split, query=QUERY, passage=PASSAGE).cross
    stored = PASSAGE * bytes_per_token("int8", width)
    head = joint.heads[0]
    said = "one value" if head.kind == "rank" else f"{len(head.labels)} labels, `--rank-label`"
    pooled = "mean" if head.pooling == "mean" else "first token"
    return [
        f"`{one['name']}`",
        joint.family,
        f"{said}, {pooled}",
        layers,
        width,
        split.split,
        f"{stored / 1000:.0f}",
        f"{whole / 1e6:,.0f}",
        f"{online / 1e6:,.0f}",
        f"{whole / online:.1f}",
    ]


def measured_reranker() -> Table:
    """ms-marco-MiniLM-L12 split, untrained and adapted, beside itself unsplit."""
    header = ["ms-marco-MiniLM-L12", "nDCG@10", "of the joint", "tau", "ms", "times faster"]
    header.append("bytes of 150 tokens")
    rows: list[list[Any]] = []
    for one in read("reranker_dl21.json")["models"]:
        joint, split = one["ndcg"]
        if not rows:
            rows.append(
                ["joint", f"{100 * joint:.1f}", "", "", f"{one['joint_ms']:.0f}", "1.0", ""]
            )
        kept, faster = f"{one['share']:.1%}", f"{one['times_faster']:.1f}"
        row = [f"{100 * split:.1f}", kept, f"{one['tau']:.2f}", f"{one['split_ms']:.0f}", faster]
        name = one["model"].replace("-", " ")
        rows.append([name, *row, f"{one['bytes_of_150_tokens']:,}"])
    return header, rows


def measured_decoder() -> Table:
    """SmolLM2-135M with the passage first: how far stored scores are from those of `transformers`."""
    header = ["<stored", "<codec", "largest difference", "tau", "bytes a token"]
    rows = []
    report = read("decoder.json")
    for one in report["variants"]:
        kept = f"keys and values of {one['split']}" if one["store"] == "kv" else None
        what = kept or (f"state at {one['split']}" if one["split"] else "nothing, unsplit")
        size = one.get("bytes_a_passage", 0) / report["tokens_a_passage"]
        shown = [f"{one['largest_gap']:.5f}", f"{one['tau']:.3f}", f"{size:,.0f}" if size else ""]
        rows.append([what, f"`{one['codec']}`" if one["codec"] else "", *shown])
    return header, rows


def not_supported() -> Table:
    """Those that cannot be split, and why."""
    rows = [[f"`{one['name']}`", one["why"]] for one in KNOWN if "why" in one]
    return ["model", "<why not"], rows


RERANKERS = (rerankers, measured_reranker, decoders, measured_decoder, not_supported)
