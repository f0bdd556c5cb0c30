"""The tables of speed and of the index."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from results import Table, read

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
        slow, fast = ms(against, 100), ms(name, 100)
        return "1" if name == against else f"{slow / fast:.1f}" if slow and fast else ""

    torch, openvino = list(CPU)[:2]
    rows = []
    for name in names:
        took = [f"{value:.0f}" if (value := ms(name, top)) else None for top in (20, 100)]
        memory = process(cells[f"BERT-base | 100 | {CPU[name]}"])
        rows.append((name, *took, times(name, torch), times(name, openvino), memory))
    header = ("BERT-base, 9 of 12 below the split", "20, ms", "100, ms")
    return (
        *header,
        "× torch at 100",
        "× OpenVINO int8 at 100",
        "MB loaded / at a query of 100",
    ), rows


def process(cell: Mapping[str, int]) -> str:
    """Resident memory of a whole process: loaded, and at the peak of a query."""
    return f"{cell['loaded_bytes'] / 1e6:,.0f} / {cell['peak_bytes'] / 1e6:,.0f}"


def ask() -> Table:
    of = read("cpu_ask.json")
    return ("`ask` over 100 candidates", "ms", "times", "processor ms", "times"), [
        (
            f"decoupled, {of['precision']}" if name == "split" else name,
            f"{took:.0f}",
            of["wall_ratio"][name],
            f"{of['processor_ms'][name]:.0f}",
            of["processor_ratio"][name],
        )
        for name, took in of["wall_ms"].items()
    ]


def deep() -> Table:
    of = read("cpu_deep.json")
    scores = {"split": "split", "joint, openvino-int8": "joint"}
    names = {"split": f"split at {of['split']} of {of['layers']}, {of['precision']}"}
    rows = []
    for name, took in of["wall_ms"].items():
        f1 = f"{of['squad'][scores[name]]['f1']:.1f}" if name in scores else None
        rows.append((names.get(name, name), f"{took:.0f}", of["wall_ratio"][name], f1))
    questions = of["squad"]["split"]["queries"]
    header = ("`ask` over 100 candidates, all read", "ms", "times")
    return (*header, f"SQuAD F1 of {questions} questions"), rows


def load() -> Table:
    columns = []
    for of in (read("serve_load.json"), read("serve_load_fp32.json")):
        alone, many = of["one_client"], of["many_clients"]
        resident = of["rss_mib"]["each_second"]
        beside = (f"{kind} {of['overhead_ms'][kind]['p50_ms']:.1f}" for kind in ("search", "ask"))
        column = {
            "": of["precision"],
            "one client, answers a second": alone["per_second"],
            f"{of['clients']} clients, answers a second": many["per_second"],
            "wrong answers": f"{alone['wrong'] + many['wrong']} of {alone['requests'] + many['requests']:,}",
            "largest difference of a score": many["largest_difference"],
            "statuses other than 200": many["requests"] - many["statuses"]["200"],
            "ms beside the engine's own at one client, p50": ", ".join(beside),
            "MiB resident, first and last second": f"{resident[0]:,.0f}, {resident[-1]:,.0f}",
        }
        columns.append(column)
    header, *rows = [(name, *(column[name] for column in columns)) for name in columns[0]]
    return header, rows


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
        # The fastest batch size was raced for longest.
        fastest = min(
            (n for n in peer if n.startswith("rerank 1000")),
            key=lambda n: (-peer[n]["n"], peer[n]["wall_ms"]),
        )
        best = peer[fastest]["wall_ms"]
        forward = min(
            t["device_ms"] for t in joint.values() if isinstance(t, dict) and "device_ms" in t
        )
        ratios = [f"{base / took[1]:.1f}x / {base / took[3]:.1f}x" for base in (forward, best)]
        rows.append(
            (
                shape,
                *(f"{t:.2f}" for t in took),
                f"{forward:.1f}",
                ratios[0],
                f"{best:.0f} ({peer[fastest]['n']})",
                ratios[1],
            )
        )
    header = ("shape", "100, exact", "1000, exact", "100, one-way", "1000, one-way")
    return (
        *header,
        "joint forward alone, 1000",
        "over it",
        "CrossEncoder, 1000 (queries)",
        "over it",
    ), rows


WIDTH = 384
"""Of the encoder whose states were stored."""


def bytes_() -> Table:
    rows = []
    for c in read("index_bytes.json")["codecs"]:
        share = {
            key: c[key] / c["states"] for key in ("text", "offsets", "vectors", "search_index")
        }
        kib, plain = c["bytes_of_150_tokens"] / 1024, 150 * WIDTH * 2 / 1024
        own = sum(share[key] for key in ("text", "offsets", "vectors"))
        rows.append((f"`{c['codec']}`", f"{kib:.1f}", f"{kib / plain:.1%}", *(f"{v:.1%}" for v in list(share.values())[:3]),
                     f"{own:.1%}", f"{share['search_index']:.1%}"))  # fmt: skip
    return (
        f"codec (width {WIDTH})",
        "KiB for 150 tokens",
        "of `fp16`",
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
        "search hybrid": "whole `search`, by default",
    }

    def cell(stage: Mapping[str, float]) -> str:
        digits = 0 if stage["p50_ms"] > 100 else 2
        return f"{stage['p50_ms']:.{digits}f} / {stage['p95_ms']:.{digits}f}"

    def growth(name: str) -> str:
        first, last = (list(sizes.values())[n][name]["p50_ms"] for n in (0, -1))
        return f"{last / first:.2f}x"

    header = ("stage, p50 / p95 in ms", *(f"{int(n):,}" for n in sizes), "growth of p50")
    memory = (f"{of['served_rss_mib'] * 1.048576:.0f}" for of in sizes.values())
    recall = (f"{of['dense_recall@100']:.3f}" for of in sizes.values())
    return header, [
        *((w, *(cell(of[n]) for of in sizes.values()), growth(n)) for n, w in names.items()),
        ("recall of the dense stage among its 100 nearest", *recall, None),
        ("MB of `decoupled serve`", *memory, None),
    ]


def rate() -> Table:
    of = read("serve_rate.json")
    names = {"split": "decoupled", "split, 2 workers": "decoupled, 2 workers"}
    names |= {n: n for n in of["times"] if n in of}

    def cell(name: str, clients: str) -> str | None:
        return f"{of[name][clients]['per_second']:.2f}" if clients in of[name] else None

    return ("questions a second, of so many clients", "1", "8", "32", "32 against its best"), [
        (words, *(cell(name, n) for n in ("1", "8", "32")), of["times"].get(name))
        for name, words in names.items()
    ]


SHARES = ("1.0", "0.6", "0.5")
"""Of the tokens, in the indexes that were searched."""


def tokens() -> Table:
    found = {share: read(f"starter_tokens_{share}.json") for share in SHARES}
    kinds = ("search", "default")
    rows = [
        (
            name,
            f"{one['queries']:,}",
            *(
                f"{of['fields'][name][kind]['ndcg@10']:.1f}"
                for of in found.values()
                for kind in kinds
            ),
        )
        for name, one in found[SHARES[0]]["fields"].items()
    ]
    means = [of["mean_ndcg@10"][kind] for of in found.values() for kind in kinds]
    lost = [f"{mean - means[0]:+.2f}" for mean in means]
    rows += [
        ("mean", None, *(f"{mean:.1f}" for mean in means)),
        ("against all tokens, all read", None, *("", *lost[1:])),
        ("bytes of 150 tokens", None, *(b for share in SHARES for b in (stored(share), ""))),
    ]
    shown = ("all read", "default")
    names = [f"{float(share):g} of the tokens, {how}" for share in SHARES for how in shown]
    return ("nDCG@10", "queries", *names), rows


def stored(share: str) -> str:
    """Bytes on disk of a passage, the mean of all collections; a token takes as many in each index."""
    kept = [math.ceil(150 * float(name)) for name in (SHARES[-1], share)]
    sizes = read(f"starter_tokens_{SHARES[-1]}.json")["fields"].values()
    one = sum(of["bytes_of_150_tokens"] for of in sizes) / len(sizes) / kept[0]
    return f"{kept[1] * one:,.0f}"


def reading() -> Table:
    of, others = read("starter_open_read.json"), read("starter_open_others.json")
    took = read("cpu_ask.json")["processor_ms"]
    cases = {
        "by default": (of, others, "split"),
        "all hundred read": (of["all_read"], others["all_read"], "split, all read"),
        "of 500 candidates": (
            *(found["500_candidates"] for found in (of, others)),
            "split, 500 candidates",
        ),
    }
    header = (f"`ask`, {of['questions']} questions", "F1", "exact match", "processor ms")
    return (*header, f"F1, {others['questions']} others"), [
        (name, f"{a['f1']:.1f}", f"{a['exact']:.1f}", f"{took[case]:.0f}", f"{b['f1']:.1f}")
        for name, (a, b, case) in cases.items()
    ]


def exits() -> Table:
    words = {"squad1": "SQuAD's development set, F1 of `ask`"}
    return ("model with exits alone", "queries", "layers run", "with exits", "all read"), [
        (
            words.get(
                name, f"{name.upper() if name == 'med' else name.title()}, nDCG@10 of `search`"
            ),
            one["queries"],
            f"{one['layers_run']:.0%}",
            *(one[kind].get("f1", one[kind].get("ndcg@10")) for kind in ("exits", "all")),
        )
        for name, one in read("starter_exits_others.json")["fields"].items()
    ]


def sizing() -> Table:
    rows = [
        (f"`{of['codec']}`", of["bytes_per_token"], f"{of['bytes_of_150_tokens'] / 1e3:.0f} GB")
        for of in read("index_bytes.json")["codecs"]
    ]
    return ("codec", "bytes a token", "states of a million passages"), rows


SPEED = (
    sizing,
    cpu,
    ask,
    deep,
    load,
    gpu,
    bytes_,
    latency,
    rate,
    tokens,
    reading,
    exits,
)
