"""Numbers that stand in sentences: `<!-- n NAME -->24<!-- / -->` in a page, and a function of that name here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from speed import CPU, stored
from tasks import TOLD
from training import f1

from results import read, runs

FLASHRANK = "FlashRank's shape (TinyBERT-L2, onnxruntime int8)"


def cell(name: str, top: int, shape: str = "BERT-base") -> dict[str, float]:
    return read("bench_cpu.json")["cells"][f"{shape} | {top} | {CPU.get(name, name)}"]


def over(slow: str, fast: str, top: int = 100) -> str:
    ratio = cell(slow, top)["p50_ms"] / cell(fast, top)["p50_ms"]
    return f"{ratio:.0f}" if ratio >= 20 else f"{ratio:.1f}"


def _busy() -> float:
    """Share of the cores that questions in a row keep at work."""
    of = read("cpu_ask.json")
    row = of["in_a_row"]
    return row["processor_ms"] / row["wall_ms"] / of["machine"]["cores"]


def gpu(kind: str, what: str) -> float:
    base = read("gpu_rerank.json")["BERT-base"]
    codec = next(name for name in base if name.startswith("project"))
    return base[codec][f"{what} {kind}"]["wall_ms"]


def gpu_forward() -> float:
    joint = read("gpu_rerank.json")["BERT-base joint"]
    return min(t["device_ms"] for t in joint.values() if isinstance(t, dict) and "device_ms" in t)


def gpu_peer() -> float:
    peer = read("gpu_rerank.json")["BERT-base CrossEncoder"]
    whole = [t for name, t in peer.items() if name.startswith("rerank 1000")]
    return min(whole, key=lambda t: (-t["n"], t["wall_ms"]))["wall_ms"]


def smaller(name: str, key: str) -> float:
    models = {row["name"]: row for row in read("shrink_squad.json")["models"]}
    row = models[name]
    return row[key]["p50_ms"] if isinstance(row[key], dict) else row[key]


def squad_mean(name: str) -> float:
    import smaller as tables

    values = tables.scores()[f"squad-{name}"]
    return sum(values) / len(values)


def _searched(times: int) -> str:
    resident = read("serve_memory.json")["rss_mib_after_each_search_for_all_words"]
    return f"{resident[times - 1]:.0f}"


def _quarter(number: int) -> str:
    """What a server held in a quarter of the requests, at the median."""
    resident = read("serve_memory.json")["series"]["rss_mib"]
    first, last = (n * len(resident) // 4 for n in (number - 1, number))
    return f"{median(resident[first:last]):.0f}"


def _packed(size: int) -> dict[str, Any]:
    """Of an index whose states are packed."""
    return read("query_latency_packed.json")["sizes"][str(size)]


def _install(name: str) -> str:
    return f"{read('install_size.json')['distributions'][name] / 1e6:.0f}"


TORCH, INT8, OURS = (
    "`CrossEncoder`, torch fp32",
    "`CrossEncoder`, OpenVINO int8",
    "decoupled, exact",
)
FIGURES: dict[str, Callable[[], str]] = {
    "serve-rss": lambda: f"{max(read('serve_load.json')['rss_mib']['each_second']):,.0f}",
    "build-passages": lambda: f"{read('index_memory.json')['passages']:,}",
    "build-memory": lambda: f"{read('index_memory.json')['above_model_mib']:,}",
    "memory-requests": lambda: f"{sum(read('serve_memory.json')['statuses'].values()):,}",
    "memory-words": lambda: f"{read('serve_memory.json')['words']:,}",
    **{f"memory-quarter-{n}": partial(_quarter, n) for n in (1, 2, 3, 4)},
    **{f"memory-search-{n}": partial(_searched, n) for n in (1, 2, 3)},
    "serve-clients": lambda: str(read("serve_load.json")["clients"]),
    "cpu-over-torch": lambda: over(TORCH, OURS),
    "cpu-over-int8": lambda: over(INT8, OURS),
    "cpu-loaded": lambda: f"{cell(OURS, 100)['loaded_bytes'] / 1e6:,.0f}",
    "cpu-loaded-torch": lambda: f"{cell(TORCH, 100)['loaded_bytes'] / 1e6:,.0f}",
    "cpu-loaded-int8": lambda: f"{cell(INT8, 100)['loaded_bytes'] / 1e6:,.0f}",
    "cpu-modernbert": lambda: (
        f"{cell('ModernBERT-17M, CrossEncoder torch', 100, 'MiniLM-L6')['p50_ms']:,.0f}"
    ),
    "cpu-flashrank": lambda: f"{cell(FLASHRANK, 100, 'MiniLM-L6')['p50_ms']:,.0f}",
    "cpu-l6": lambda: f"{cell(OURS, 100, 'MiniLM-L6')['p50_ms']:.0f}",
    "cpu-l12": lambda: f"{cell(OURS, 100, 'MiniLM-L12')['p50_ms']:.0f}",
    "gpu-exact": lambda: f"{gpu('exact', 'rerank 1000'):.1f}",
    "gpu-one-way": lambda: f"{gpu('one-way', 'rerank 1000'):.1f}",
    "gpu-forward": lambda: f"{gpu_forward():.0f}",
    "gpu-peer": lambda: f"{gpu_peer():.0f}",
    "projection-loss": lambda: (
        f"{_teacher() - runs('train_compress.json')['squad-k3-p96']['int8']['f1']:.1f}"
    ),
    "stored-150": partial(stored, "1.0"),
    "bytes-150": lambda: f"{_codec('project:96+int8')['bytes_of_150_tokens'] / 1024:.1f}",
    "split-int8-faster": lambda: (
        f"{smaller('joint', 'openvino_online_32') / smaller('split-int8', 'openvino_online_32'):.1f}"
    ),
    "split-int8-smaller": lambda: (
        f"{smaller('joint', 'weight_bytes') / smaller('split-int8', 'weight_bytes'):.1f}"
    ),
    "split-int8-loss": lambda: f"{squad_mean('joint') - squad_mean('split-int8'):.1f}",
    "squad-joint": lambda: str(f1(runs("train_squad.json"), "squad-joint")),
    "squad-k3-long": lambda: str(f1(runs("train_squad.json"), "squad-k3-long")),
    "packed-mb": lambda: f"{_packed(100_000)['served_rss_mib'] * 2**20 / 1e6:.0f}",
    "packed-disk": lambda: f"{_packed(100_000)['bytes'] / 1e6:.0f}",
    "packed-read": lambda: f"{_packed(100_000)['fetch']['p50_ms']:.1f}",
    "packed-whole": lambda: f"{_packed(100_000)['search hybrid']['p50_ms']:.0f}",
    "packed-least": lambda: f"{_packed(10_000)['search hybrid']['p50_ms']:.0f}",
    "exits-run": lambda: f"{100 * read('starter_exits_alone.json')['layers_run']:.0f}",
    "ask-wall": lambda: f"{read('cpu_ask.json')['wall_ms']['split']:.0f}",
    "ask-int8": lambda: f"{read('cpu_ask.json')['wall_ratio']['joint, OpenVINO int8']:.1f}",
    "ask-fp32": lambda: f"{read('cpu_ask.json')['wall_ratio']['joint, OpenVINO fp32']:.1f}",
    "ask-row": lambda: f"{read('cpu_ask.json')['in_a_row']['wall_ms']:.0f}",
    "ask-busy": lambda: f"{100 * _busy():.0f}",
    "ask-ceiling": lambda: f"{1 / _busy():.2f}",
    "real-split": lambda: f"{100 * _real('split-at-4')['share']:.0f} %",
    "real-kept": lambda: f"{100 * _real()['share']:.0f} %",
    "real-ms": lambda: f"{_real()['split_ms']:.0f}",
    "real-joint": lambda: f"{_real()['joint_ms']:.0f}",
    "shrink-starter-commit": lambda: read("shrink_starter.json")["commit"][:7],
    "install-all": lambda: f"{read('install_size.json')['bytes'] / 1e6:.0f}",
    **{
        f"install-{name}": partial(_install, name)
        for name in ("pylance", "openvino", "pyarrow", "numpy", "decoupled")
    },
    "mrpc-majority": lambda: f"{read('majority.json')['datasets']['mrpc']['accuracy']:.1f}",
    "mnli-majority": lambda: f"{read('majority.json')['datasets']['mnli']['accuracy']:.1f}",
    **TOLD,
    "twitter-majority": lambda: f"{read('majority.json')['datasets']['twitter']['accuracy']:.1f}",
}


def _real(name: str = "adapted-at-4") -> dict[str, float]:
    """Figures of a real reranker, split at 4 and adapted, or another one of that run."""
    return next(m for m in read("reranker_dl21.json")["models"] if m["model"] == name)


def _teacher() -> float:
    return runs("train_squad.json")["squad-joint"]["fp"]["f1"]


def _codec(name: str) -> dict[str, float]:
    return next(c for c in read("index_bytes.json")["codecs"] if c["codec"] == name)
