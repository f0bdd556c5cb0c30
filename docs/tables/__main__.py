"""The tables of README.md and docs/results, made from the JSON in benchmarks/results.

    python docs/tables            # write them into the pages
    python docs/tables --check    # fail where a page differs, as `make check` does

A page says where a table stands: `<!-- table NAME -->`, the table, `<!-- end -->`. A function of that name
below gives its header and rows.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from smaller import SMALLER

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
MARK = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.S)

Table = tuple[Sequence[str], Iterable[Sequence[object]]]


def read(name: str) -> Any:
    """One file of results; a list where it holds a JSON document a line."""
    text = (RESULTS / name).read_text(encoding="utf-8")
    return (
        [json.loads(line) for line in text.splitlines()] if name.endswith("l") else json.loads(text)
    )


def runs(*names: str) -> dict[str, Mapping[str, Any]]:
    """The scores of trained models by their names; the first file that has one decides."""
    found: dict[str, Mapping[str, Any]] = {}
    for name in names:
        for run in read(name)["runs"]:
            found.setdefault(run.get("name") or run["run"]["name"], run["test"])
    return found


def render(table: Table) -> str:
    """Markdown, numbers to the right. A header that begins with `<` stays on the left."""
    header, rows = table
    left = [n == 0 or h.startswith("<") for n, h in enumerate(header)]
    lines = [[h.removeprefix("<") for h in header], ["---" if on else "--:" for on in left]]
    lines += [["" if value is None else str(value) for value in row] for row in rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


# The starter and training -------------------------------------------------------------------------


def starter() -> Table:
    both = read("starter.json")
    rows = [
        ("F1, gold passage given", "f1"),
        ("F1, best of BM25's 100 of 20,958 passages, 1,000 questions", "open_null_f1"),
        ("MRR@10 of those candidates reranked (BM25 alone: 79.7)", "mrr@10"),
    ]
    scores = [
        (what, *(f"{both[side][key]:.1f}" for side in ("teacher", "student"))) for what, key in rows
    ]
    recall = f"{100 * both['student']['dense_recall@100']:.1f} %"
    return ("", "joint", "split, stored"), [
        *scores,
        ("recall@100 of the vector from the same pass", None, recall),
    ]


def splits() -> Table:
    short, long = runs("train_squad.json"), runs("squad_long.json")
    short = {**short, "squad-k3": short["squad-k3-kdlrs-s0"]}

    def row(name: str, of: Mapping[str, Any]) -> list[str | None]:
        return [f1(of, name.format(k=k)) for k in range(1, 7)]

    joint = f1(short, "squad-joint")
    return ("layers per text alone", "0 (joint)", *map(str, range(1, 7))), [
        ("split, no training", joint, *row("squad-k{k}-untrained", short)),
        ("distilled, 2 epochs", joint, *row("squad-k{k}", short)),
        ("distilled, 8 epochs (its teacher: 83.3)", None, *row("squad-k{k}-long8", long)),
    ]


def f1(of: Mapping[str, Any], name: str, precision: str = "fp", metric: str = "f1") -> str | None:
    """A score of a run, or nothing where there is no such run."""
    return f"{of[name][precision][metric]:.1f}" if name in of else None


def every_split() -> Table:
    of = runs("train_squad.json", "train_pairs.json")
    of = {**of, "squad-k3": of["squad-k3-kdlrs-s0"]}

    def row(k: int) -> list[object]:
        name = "joint" if k == 0 else f"k{k}"
        bare = "squad-joint" if k == 0 else f"squad-k{k}-untrained"
        pairs = [
            f1(of, f"{data}-{name}", metric="accuracy") for data in ("mnli", "twitter", "mrpc")
        ]
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
    of |= {
        "squad-k4": runs("train_squad.json")["squad-k4"],
        "squad-k4-long8": runs("squad_long.json")["squad-k4-long8"],
    }
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
        (4, "plain, 8 epochs", "squad-k4-long8", ", four times the steps"),
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


def reading() -> Table:
    of = runs("train_reading.json")
    return ("", "joint", "k=3, distilled"), [
        (name, *(f1(of, f"{data}-{which}", metric="accuracy") for which in ("joint", "k3")))
        for data, name in (("race", "RACE"), ("boolq", "BoolQ"))
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


# Speed --------------------------------------------------------------------------------------------

CPU = {
    "`CrossEncoder`, torch fp32": "CrossEncoder torch",
    "`CrossEncoder`, OpenVINO int8": "CrossEncoder OpenVINO int8",
    "onnxruntime int8": "onnxruntime int8",
    "decoupled, torch fp32, exact": "decoupled torch exact",
    "decoupled, exact": "decoupled openvino-int8 exact",
    "decoupled, narrow": "decoupled openvino-int8 narrow",
    "decoupled, late interaction (reads 30%)": "decoupled openvino-int8 cascade",
    "decoupled, one-way": "decoupled openvino-int8 one-way",
    "decoupled, one-way, narrow": "decoupled openvino-int8 one-way narrow",
}


def cpu(names: Iterable[str] = CPU) -> Table:
    cells = read("bench_cpu.json")["cells"]

    def ms(name: str, top: int) -> float | None:
        cell = cells.get(f"BERT-base | {top} | {CPU[name]}")
        return cell["p50_ms"] if cell else None

    def times(name: str, against: str) -> str:
        pairs = [(ms(against, top), ms(name, top)) for top in (100, 1000)]
        shown = [f"{a / b:.1f}" for a, b in pairs if a and b]
        return "1" if name == against else " / ".join(shown)

    torch, openvino = list(CPU)[:2]
    rows = []
    for name in names:
        took = [f"{value:.0f}" if (value := ms(name, top)) else None for top in (20, 100, 1000)]
        memory = f"{cells[f'BERT-base | 100 | {CPU[name]}']['query_bytes'] / 1e6:.0f} MB"
        rows.append((name, *took, times(name, torch), times(name, openvino), memory))
    header = ("BERT-base, 9 of 12 below the split", "20, ms", "100, ms", "1000, ms")
    return (
        *header,
        "× torch at 100 / 1000",
        "× OpenVINO int8 at 100 / 1000",
        "added by a query of 100",
    ), rows


def ask() -> Table:
    of = read("cpu_ask.json")
    words = {
        "split": "decoupled, int8",
        "joint, OpenVINO fp32": "joint, OpenVINO fp32",
        "joint, torch fp32": "joint, torch fp32, texts of like length together",
        "joint, torch fp32, padded batches of 32": "joint, torch fp32, batches of 32 in any order",
    }
    return ("`ask` over 100 candidates", "ms", "times"), [
        (text, f"{of['wall_ms'][name]:.0f}", of["wall_ratio"][name]) for name, text in words.items()
    ]


def gpu() -> Table:
    of = read("gpu_rerank.json")
    rows = []
    for shape in ("MiniLM-L6", "MiniLM-L12", "BERT-base", "BERT-large"):
        base = shape == "BERT-base"
        ours, joint, peer = (
            (of[shape], of[f"{shape} joint"], of[f"{shape} CrossEncoder"])
            if base
            else (of[shape][key] for key in ("ours", "joint", "CrossEncoder"))
        )
        codec = next(name for name in ours if name.startswith("project"))
        took = [
            ours[codec][f"rerank {n} {kind}"]["wall_ms"]
            for kind in ("exact", "one-way")
            for n in (100, 1000)
        ]
        best = min(t["wall_ms"] for name, t in peer.items() if name.startswith("rerank 1000"))
        forward = min(
            t["device_ms"] for t in joint.values() if isinstance(t, dict) and "device_ms" in t
        )
        ratio = f"{best / took[1]:.0f}x / {best / took[3]:.0f}x"
        rows.append((shape, *(f"{t:.2f}" for t in took), f"{forward:.1f}", f"{best:.0f}", ratio))
    header = ("shape", "100, exact", "1000, exact", "100, one-way", "1000, one-way")
    return (
        *header,
        "joint forward alone, 1000",
        "CrossEncoder, 1000",
        "times faster at 1000",
    ), rows


# The index ----------------------------------------------------------------------------------------


def bytes_() -> Table:
    rows = []
    for c in read("index_bytes.json")["codecs"]:
        share = {
            key: c[key] / c["states"] for key in ("text", "offsets", "vectors", "search_index")
        }
        kib = c["bytes_of_150_tokens"] / 1024
        own = sum(share[key] for key in ("text", "offsets", "vectors"))
        rows.append((f"`{c['codec']}`", f"{kib:.1f}", f"{kib / 225:.1%}", *(f"{v:.1%}" for v in list(share.values())[:3]),
                     f"{own:.1%}", f"{share['search_index']:.1%}"))  # fmt: skip
    return (
        "codec (width 384)",
        "KiB for 150 tokens",
        "of 225 KiB",
        "text",
        "offsets",
        "vectors",
        "these three",
        "BM25 index",
    ), rows


def latency() -> Table:
    sizes = read("query_latency.json")["sizes"]
    names = {
        "fetch": "read the states of 100",
        "decode": "decode them",
        "lexical": "lexical candidates",
        "dense": "dense candidates",
        "hybrid": "hybrid candidates",
        "search hybrid": "whole query, hybrid, torch",
    }

    def cell(stage: Mapping[str, float]) -> str:
        digits = 0 if stage["p50_ms"] > 100 else 2
        return f"{stage['p50_ms']:.{digits}f} / {stage['p95_ms']:.{digits}f}"

    def growth(name: str) -> str:
        first, last = (list(sizes.values())[n][name]["p50_ms"] for n in (0, -1))
        return f"{last / first:.2f}x"

    header = ("stage, p50 / p95 in ms", *(f"{int(n):,}" for n in sizes), "growth of p50")
    return header, [
        (words, *(cell(of[name]) for of in sizes.values()), growth(name))
        for name, words in names.items()
    ]


def retrieval() -> Table:
    rows = []
    for name in ("retrieval_squad.json", "retrieval_cranfield.json"):
        for corpus in read(name)["corpora"]:
            for n, stage in enumerate(corpus["stages"]):
                scores = [
                    stage[when][metric]
                    for metric in ("ndcg@10", "mrr@10")
                    for when in ("before", "after")
                ]
                title = f"{corpus['corpus'].capitalize() if corpus['corpus'] != 'SQuAD' else 'SQuAD'}, {corpus['passages']:,}"
                rows.append(
                    (
                        title if n == 0 else "",
                        stage["first_stage"],
                        f"{stage['recall@100']:.3f}",
                        *(f"{s:.3f}" for s in scores),
                    )
                )
    return (
        "corpus",
        "<first stage",
        "recall@100",
        "nDCG@10",
        "reranked",
        "MRR@10",
        "reranked",
    ), rows


def cascade() -> Table:
    of = read("cascade.json")
    plain = {cut["keep"]: cut for cut in of["plain"]}
    rows = []
    for cut in of["cuts"]:
        if cut["keep"] in (0.1, 0.15, 0.3, 0.5, 1.0):
            other = plain[cut["keep"]]
            shown = (
                [f"{c['mrr']:.4f}" for c in (cut, other)],
                [f"{c['loss']:.2%}" for c in (cut, other)],
            )
            mark = " (chosen)" if cut["keep"] == of["keep"] else ""
            rows.append(
                (
                    f"{cut['keep']:g}{mark}",
                    f"{cut['read']:.1%}",
                    shown[0][0],
                    shown[1][0],
                    shown[0][1],
                    shown[1][1],
                )
            )
    return ("share", "read", "MRR@10, fitted", "lost", "MRR@10, plain cosines", "lost"), rows


def cascade_ask() -> Table:
    of = read("cascade.json")["ask"]
    shares = ["all", "0.03", "0.1", "0.2", "0.3"]
    rows = [
        ("passages read", "read", ".1f"),
        ("F1", "f1", ".1f"),
        ("answers changed", "changed", "d"),
    ]
    return ("", *(s if s == "all" else f"share {s}" for s in shares)), [
        (words, *(format(of[s][key], form) for s in shares)) for words, key, form in rows
    ]


# Where to split -----------------------------------------------------------------------------------


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


def suggestion() -> Table:
    of = read("suggestion.json")
    order = {"squad": "SQuAD", "twitter": "Twitter", "mrpc": "MRPC", "mnli": "MNLI"}
    sets = {row["dataset"]: row for row in of["datasets"]}
    header = (
        "rule",
        *(f"{words} ({sets[name]['best']})" for name, words in order.items()),
        "within one layer",
    )
    return header, [
        (rule, *(sets[name]["suggested"][rule] for name in order), f"{within} of 4")
        for rule, within in of["within_one_layer"].items()
    ]


MAKERS = (starter, splits, every_split, losses, beyond, projection, reading, one_way, cpu, ask, gpu)
MAKERS += (bytes_, latency, retrieval, cascade, cascade_ask, sweep, suggestion)
SHORT = [n for n in CPU if "onnx" not in n and "narrow" not in n and "decoupled, torch" not in n]
TABLES: dict[str, Callable[[], Table]] = {
    **{make.__name__.strip("_").replace("_", "-"): make for make in MAKERS},
    "cpu-short": lambda: cpu(SHORT),
    **SMALLER,
}


def filled(text: str, where: Path) -> str:
    """A page with every table as the results have it."""

    def fill(mark: re.Match[str]) -> str:
        if mark[2] not in TABLES:
            raise SystemExit(f"{where}: no table {mark[2]!r}; there are {', '.join(TABLES)}")
        return f"{mark[1]}\n{render(TABLES[mark[2]]())}\n{mark[3]}"

    return MARK.sub(fill, text)


def main() -> int:
    """Write the pages, or say where they differ from the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 where a page differs"
    )
    check, stale = parser.parse_args().check, 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        old = page.read_text(encoding="utf-8")
        new = filled(old, page)
        if new != old and check:
            sys.stdout.writelines(
                difflib.unified_diff(
                    old.splitlines(True), new.splitlines(True), str(page), "from the results", n=0
                )
            )
            stale = 1
        elif new != old:
            page.write_text(new, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
