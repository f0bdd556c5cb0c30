"""The tables of the starter, of training, and of where to split."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from results import Table, read, runs


def starter() -> Table:
    squad, squad2 = read("starter_squad.json"), read("starter_squad2.json")
    wide, listed = read("starter_open.json"), read("starter_dl21.json")
    wiki = read("starter_wikiqa.json")
    rows = [
        ("SQuAD 1.1, F1 of `ask` with the passage given", squad["questions"], squad["f1"]),
        ("the same, exact match", squad["questions"], squad["exact"]),
        (f"SQuAD, F1 of `ask` over {wide['passages']:,} passages", wide["questions"], wide["f1"]),
        ("SQuAD 2.0, F1 of `ask`", *of(squad2["auto"])),
        ("SQuAD 2.0, F1 when always answered", *of(squad2["always"])),
        ("WikiQA, MRR of `rerank`", wiki["questions"], wiki["mrr"]),
        ("TREC DL21, nDCG@10 of BM25's hundred", listed["queries"], listed["bm25"]),
        ("the same after `rerank`", listed["queries"], listed["rerank"]),
    ]
    return ("", "questions", "score"), [(what, f"{n:,}", f"{x:.1f}") for what, n, x in rows]


def knowing() -> Table:
    """Corpora where half of the questions have no answer: what `ask` gives, and what its scores say."""
    names = {"squad": "SQuAD", "multispanqa": "MultiSpanQA", "medquad": "MedQuAD"}
    names |= {"postgresql": "PostgreSQL manual", "git": "git manual", "sqlite": "SQLite manual"}
    rows = []
    for name, one in read("starter_knowing.json")["corpora"].items():
        shares = (one["right_kept"], one["silenced"], one["right_kept_at_80_silenced"])
        sure = f"{one['sure_right']:.0%} of {one['sure']}" if one["sure"] else "none"
        f1 = f"{one['f1_of_answering']:.2f} ({one['f1_when_always_answered']:.2f})"
        size = f"{one['questions']:,} ({one['without_answer']:,})"
        percents = (f"{100 * share:.0f} %" for share in shares)
        rows.append((names[name], size, f1, *percents, f"{one['calibration_error']:.3f}", sure))
    columns = ("", "questions (without)", "F1 (always answered)", "kept", "silent")
    return (*columns, "kept where 80 % are silent", "calibration error", "right of ≥ 85 %"), rows


def of(answered: Mapping[str, Any]) -> tuple[int, float]:
    return answered["questions"], answered["f1"]


def fields() -> Table:
    found = read("starter_fields.json")
    kinds = ("lexical", "dense", "hybrid", "search")
    rows = [
        (name, f"{one['queries']:,}", *(f"{one[kind]['ndcg@10']:.1f}" for kind in kinds))
        for name, one in found["fields"].items()
    ]
    mean = ("mean", None, *(f"{found['mean_ndcg@10'][kind]:.1f}" for kind in kinds))
    columns = ("BM25", "vector", "hybrid", "`search`")
    return ("nDCG@10", "queries", *columns), [*rows, mean]


def recalls() -> Table:
    found = {**read("starter_fields.json")["fields"]}
    found["squad"] = read("starter_open.json")["first_stage"]
    rows = [
        (name, *(f"{one[kind]['recall@100']:.1f}" for kind in ("lexical", "dense", "hybrid")))
        for name, one in found.items()
    ]
    return ("recall@100", "BM25", "vector", "hybrid"), rows


def calibration() -> Table:
    given, silent = read("starter_squad.json"), read("starter_squad2.json")["always"]
    wide, ranked = read("starter_open.json"), read("starter_fields.json")["fields"]
    rows = [
        ("answers, SQuAD 1.1, passage given", given["calibration_error"]),
        ("answers, SQuAD 2.0, passage given, half without an answer", silent["calibration_error"]),
        ("answers, both together", pooled(given["reliability"], silent["reliability"])),
        ("answers, SQuAD, from all passages", wide["calibration_error"]),
        *((f"`search`, {name}", one["calibration_error"]) for name, one in ranked.items()),
        ("`search`, all together", pooled(*(one["reliability"] for one in ranked.values()))),
    ]
    return ("expected calibration error, 15 bins", "error"), [(n, f"{x:.3f}") for n, x in rows]


def pooled(*tables: list[Mapping[str, Any]]) -> float:
    """The calibration error of several sets, each of which counts alike."""
    gaps: dict[float, float] = {}
    for table in tables:
        total = sum(one["count"] for one in table)
        for one in table:
            gap = one["count"] / total * (one["score"] - one["right"])
            gaps[one["low"]] = gaps.get(one["low"], 0.0) + gap
    return sum(map(abs, gaps.values())) / len(tables)


def splits() -> Table:
    short = runs("train_squad.json")
    short = {**short, "squad-k3": short["squad-k3-kdlrs-s0"]}

    def row(name: str, of: Mapping[str, Any]) -> list[str | None]:
        return [f1(of, name.format(k=k)) for k in range(1, 7)]

    joint = f1(short, "squad-joint")
    return ("layers per text alone", "0 (joint)", *map(str, range(1, 7))), [
        ("split, no training", joint, *row("squad-k{k}-untrained", short)),
        ("distilled, 2 epochs", joint, *row("squad-k{k}", short)),
        ("distilled, 6 epochs", None, *row("squad-k{k}-long", short)),
    ]


def f1(of: Mapping[str, Any], name: str, precision: str = "fp", metric: str = "f1") -> str | None:
    """A score of a run, or nothing where there is no such run."""
    return f"{of[name][precision][metric]:.1f}" if name in of else None


def every_split() -> Table:
    of, least = runs("train_squad.json", "train_pairs.json"), read("majority.json")["datasets"]
    of = {**of, "squad-k3": of["squad-k3-kdlrs-s0"]}

    def row(k: int) -> list[object]:
        name = "joint" if k == 0 else f"k{k}"
        bare = "squad-joint" if k == 0 else f"squad-k{k}-untrained"
        pairs = []
        for data in ("mnli", "twitter", "mrpc"):
            right = of[f"{data}-{name}"]["fp"]["accuracy"]
            below = " ↓" if right < least[data]["accuracy"] else ""
            pairs.append(f"{right:.1f}{below}")
        mrpc = f"{pairs.pop()} / {f1(of, f'mrpc-{name}')}"
        return [
            f"{k} (teacher)" if k == 0 else k,
            f1(of, bare),
            f1(of, f"squad-{name}"),
            *pairs,
            mrpc,
        ]

    header = (
        "k",
        "SQuAD F1, no training",
        "SQuAD F1",
        "MNLI accuracy",
        "Twitter-URL accuracy",
        "MRPC accuracy / F1",
    )
    return header, [row(k) for k in range(7)]


def losses() -> Table:
    of = [runs("train_squad.json"), *[runs("train_seeds.json")] * 2]
    names = {
        "none": "the task alone",
        "kd": "soft targets (KD)",
        "kdlrs": "soft targets and layer-wise states (KD + LRS, DeFormer)",
        "last": "last layer's states and attention (Decoupled Transformer)",
    }
    rows = []
    for name, words in names.items():
        scores = [found[f"squad-k3-{name}-s{seed}"]["fp"]["f1"] for seed, found in enumerate(of)]
        rows.append((words, f"{statistics.mean(scores):.2f} ± {statistics.stdev(scores):.2f}"))
    return ("losses", "F1"), rows


def beyond() -> Table:
    of = {**runs("train_seeds.json"), **runs("train_beyond.json")}
    of |= {"squad-k4": runs("train_squad.json")["squad-k4"]}
    rows = [
        (3, "plain: started from the fine-tuned teacher", "squad-k3-kdlrs-s0", ""),
        (3, "started from the pre-trained encoder", "squad-k3-pretrained", ""),
        (3, "`cross_embed=add`: segment and position vectors added again at the split", "squad-k3-crossadd", ""),
        (3, "`positions=offset`: passages count on from the query's longest length", "squad-k3-offset", ""),
        (3, "half as many pairs again, shuffled, the teacher's answers", "squad-k3-shuffled", ""),
        (3, "half as many pairs again, paragraphs cropped, the teacher's answers", "squad-k3-cropped", ", half of the steps more"),
        (4, "plain", "squad-k4", ""),
        (4, "one more cross layer, a copy of the last (7 in all)", "squad-k4-extra", ""),
        (4, "in steps: started from and taught by the k=3 student", "squad-k4-step", ", twice the steps"),
    ]  # fmt: skip
    plain = {3: "squad-k3-kdlrs-s0", 4: "squad-k4"}
    cells = []
    for k, words, name, note in rows:
        score, base = (round(of[n]["fp"]["f1"], 1) for n in (name, plain[k]))
        cells.append(
            (k, words, f"{score:.1f}", None if name == plain[k] else f"{score - base:+.1f}{note}")
        )
    return ("k", "<what", "F1", "against the plain student"), cells


def projection() -> Table:
    of = runs("train_compress.json")
    rows = [
        ("192", "2x", "p192"),
        ("128", "3x", "p128"),
        ("96", "4x", "p96"),
        ("96, one phase", "4x", "p96-one"),
    ]
    rows += [("48", "8x", "p48"), ("24", "16x", "p24")]
    return ("width", "smaller by", "fp16", "int8", "int4"), [
        (width, by, *(f1(of, f"squad-k3-{name}", p) for p in ("fp", "int8", "int4")))
        for width, by, name in rows
    ]


def one_way() -> Table:
    of = runs("train_beyond.json")
    rows = [
        ("joint", "squad-joint", "squad-rank-joint"),
        ("exact split", "squad-k3-kdlrs-s0", "squad-rank-k3"),
    ]
    rows += [("one-way", "squad-k3-oneway", "squad-rank-k3-oneway")]
    return ("", "SQuAD 1.1, F1", "SQuAD paragraphs, MRR@10"), [
        (what, f1(of, span), f1(of, rank, metric="mrr@10")) for what, span, rank in rows
    ]


def sweep() -> Table:
    rows = []
    for row in read("sweep_squad.jsonl"):
        times = [
            row["latency_ms"].get(side, row["latency_ms"]["joint"])["median"]
            for side in ("joint", "split")
        ]
        speed = row["flops"]["speedup"]
        rows.append(
            (
                row["split"],
                f"{row['score']:.1f}",
                f"{row['agreement']:.2f}",
                f"{speed:.3g}",
                f"{times[0] / times[1]:.3g}",
            )
        )
    return ("k", "F1", "agreement", "FLOPs, joint / split", "time, joint / split"), rows


TRAINING = (
    starter,
    knowing,
    fields,
    recalls,
    calibration,
    splits,
    every_split,
    losses,
    beyond,
    projection,
    one_way,
    sweep,
)
