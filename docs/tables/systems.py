"""Every system of the sources: what runs it, its card, one figure of ours, and a verdict."""

from __future__ import annotations

from collections.abc import Callable

from kinds import beside, hashed, reversible
from pretraining import pretraining_field
from smaller import cell
from training import f1

from results import Table, read, runs

USE, NICHE, NO, OPEN = "use", "niche", "no gain here", "not run"
Row = tuple[str, str, str, Callable[[], str], str]


def squad(name: str, other: str = "joint-longer") -> Callable[[], str]:
    """F1 beside that of the whole model under the same budget."""
    return lambda: f"F1 {cell('squad', name)}, whole {cell('squad', other)}"


def kind(name: str) -> Callable[[], str]:
    """F1 and accuracy of a kind beside the plain encoder of the same steps."""

    def said() -> str:
        found, plain = (
            [cell(of, f"kind-{n}") for of in ("squad", "mnli")] for n in (name, "plain")
        )
        told = f"F1 {found[0]}, MNLI {found[1]}; plain {plain[0]}, {plain[1]}"
        return told if all(found) else ""

    return said


def trained(file: str, name: str, *others: str) -> Callable[[], str]:
    """F1 of one run, and of others beside it: one seed each."""
    listed = tuple(zip(("F1", *others[::2]), (name, *others[1::2]), strict=True))
    return lambda: ", ".join(f"{word} {f1(runs(file), run)}" for word, run in listed) + " (1)"


def field(*names: str) -> Callable[[], str]:
    """nDCG@10 on the texts of a field after pre-training, beside that without."""

    def said() -> str:
        rows = {row[0]: row[-1] for row in pretraining_field()[1]}
        told = ", ".join(f"{name} {rows[f'`{name}`']}" for name in names)
        return f"nDCG@10 {told}; without {rows['none']}"

    return said


def projected() -> str:
    found = runs("train_compress.json")["squad-k3-p96"]
    return f"F1 {found['int8']['f1']:.1f} in a quarter of the width and int8 (1)"


def stored() -> str:
    codecs = read("index_bytes.json")["codecs"]
    found = next(one for one in codecs if one["codec"] == "project:96+int8")
    return f"{found['bytes_of_150_tokens'] / 1024:.1f} KiB for 150 tokens"


def stopped() -> str:
    exits = read("starter_exits.json")["exits"]
    free = [one for one in exits if not one["ndcg"] and not one["f1"]]
    most = {one["layer"]: one["stops"] for one in free}
    told = ", ".join(f"{share:.0%} after layer {layer}" for layer, share in most.items())
    run = read("starter_exits_alone.json")["layers_run"]
    return f"alone they leave {run:.0%} of the cross layers; after late interaction they stop {told}: less than they cost"


def translated() -> str:
    found = read("translation.json")["variants"]["base"]
    return f"BLEU {found['bleu']:.1f} on Multi30k ({found['seeds']})"


ROWS: list[Row] = [
    (
        "DeFormer's split",
        "`split --at 3`",
        "[where](../results/where-to-split.md)",
        trained("train_squad.json", "squad-k3-untrained", "joint", "squad-joint"),
        USE,
    ),
    (
        "distillation of logits and layers, tuned weights",
        "`distill`, `tune`",
        "[training](../training.md)",
        trained("train_squad.json", "squad-k3-long", "joint", "squad-joint"),
        USE,
    ),
    (
        "Decoupled Transformer: last-layer losses alone, without its tables",
        "`distill --set` of its weights",
        "[training](../training.md)",
        trained("train_squad.json", "squad-k3-last-s0", "layer by layer", "squad-k3-kdlrs-s0"),
        NO,
    ),
    (
        "Decoupled Transformer: tables at the split, last-layer losses, two phases",
        "`distill --recipe decoupled`",
        "[training](../training.md)",
        str,
        OPEN,
    ),
    (
        "learned projection of the states",
        "`distill --projection 96`",
        "[states](../results/states.md)",
        projected,
        USE,
    ),
    (
        "int8 states, cost model",
        "`index --codec`, `cost`",
        "[index](../results/index-cost.md)",
        stored,
        USE,
    ),
    (
        "factorised embedding (ALBERT)",
        "`-m factorise-embedding`",
        "[embedding](embedding.md)",
        squad("joint-factorise"),
        NICHE,
    ),
    ("DeFINE", "`-m define`", "[define](define.md)", kind("define"), NICHE),
    (
        "complex word embeddings",
        "`-m complex-embedding`",
        "[complex](complex-embedding.md)",
        kind("complex"),
        NO,
    ),
    (
        "frequency bands",
        "`-m band-embedding`",
        "[embedding](embedding.md)",
        squad("joint-bands"),
        NICHE,
    ),
    (
        "vocabulary reduction",
        "`-m reduce-vocabulary`",
        "[reduce-vocabulary](reduce-vocabulary.md)",
        squad("joint-vocabulary"),
        NICHE,
    ),
    (
        "head importance and pruning",
        "`-m prune-heads`",
        "[prune-heads](prune-heads.md)",
        squad("joint-heads"),
        USE,
    ),
    (
        "fixed attention patterns",
        "`-m fix-heads`",
        "[fix-heads](fix-heads.md)",
        squad("joint-fixed"),
        NO,
    ),
    ("LSRA, Lite Transformer", "`-m lsra`", "[lsra](lsra.md)", kind("lsra"), NO),
    (
        "tree attention",
        "`-m tree`",
        "[tree](tree.md)",
        beside(
            "tree",
            ("F1", "tree:labels=paragraph", ("after", "f1")),
            ("plain", "plain", ("after", "f1")),
        ),
        NO,
    ),
    ("LSH attention (Reformer)", "`-m lengthen -m lsh`", "[long](long.md)", hashed, NO),
    ("reversible layers (Reformer)", "`-m reversible`", "[memory](memory.md)", reversible, NICHE),
    (
        "Transformer-XH",
        "`-m hop`, `ask --hops 2`",
        "[hop](hop.md)",
        beside(
            "hops",
            ("two-hop F1", "hop", ("after", "together", "f1")),
            ("without", "plain", ("after", "alone", "f1")),
        ),
        USE,
    ),
    ("layers shared (ALBERT)", "`-m share`", "[share](share.md)", squad("joint-share"), NICHE),
    (
        "LayerDrop",
        "`-m layerdrop`, `-m keep-layers`",
        "[layers](layers.md)",
        squad("dropped-every-other"),
        NICHE,
    ),
    (
        "BERT-of-Theseus",
        "`-m theseus`",
        "[theseus](theseus.md)",
        squad("joint-theseus-long", "joint"),
        NICHE,
    ),
    ("DExTra, DeLighT", "`-m delight`", "[delight](delight.md)", kind("delight"), NO),
    (
        "chunked feed-forward maps and loss, recomputed activations",
        "`-m chunk-ffn`, `-m checkpoint-gradients`",
        "[memory](memory.md)",
        lambda: "the same results in less memory",
        NICHE,
    ),
    (
        "Compressive Transformer",
        "`-m compressive`",
        "[compressive](compressive.md)",
        beside(
            "windows",
            ("F1 across windows", "compressive:compress=conv", ("after", "f1_before")),
            ("windows alone", "plain", ("after", "f1_before")),
            ("one long window", "whole", ("after", "f1_before")),
        ),
        NICHE,
    ),
    (
        "exits of different depth",
        "`with_exits`, `AdaptiveRuntime`; `examples/starter/train.py reader … --set weights.exits=0.3`",
        "[exits](exits.md)",
        stopped,
        NO,
    ),
    (
        "masked words, next sentence, sentence order",
        "`pretrain --objective mlm`, `nsp`, `sop`",
        "[pretrain](../pretrain.md)",
        field("mlm", "nsp", "sop"),
        USE,
    ),
    (
        "ELECTRA",
        "`pretrain --objective electra`",
        "[pretrain](../pretrain.md)",
        field("electra"),
        NICHE,
    ),
    (
        "StructBERT",
        "`pretrain --objective structbert`",
        "[pretrain](../pretrain.md)",
        field("structbert"),
        NICHE,
    ),
    ("WKLM", "`pretrain --objective wklm`", "[pretrain](../pretrain.md)", field("wklm"), NO),
    (
        "a distilled student of fewer layers",
        "`-m student`",
        "[student](student.md)",
        squad("joint-kd-long", "joint"),
        USE,
    ),
    (
        "quantised weights and inputs, aware training",
        "`-m quantise`",
        "[quantise](quantise.md)",
        squad("joint-int8", "joint"),
        USE,
    ),
    (
        "neurons out",
        "`-m prune-neurons`",
        "[prune-neurons](prune-neurons.md)",
        squad("joint-neurons"),
        USE,
    ),
    (
        "weights out",
        "`-m prune-weights`",
        "[prune-weights](prune-weights.md)",
        squad("joint-weights"),
        NO,
    ),
    ("low rank", "`-m low-rank`", "[low-rank](low-rank.md)", squad("joint-low-rank"), NICHE),
    (
        "combinations",
        "several `-m`",
        "[smaller](../results/smaller.md)",
        squad("split-p96-int8", "joint"),
        USE,
    ),
    (
        "decoder: causal and cross-attention",
        "`examples/translation`",
        "[decoder](decoder.md)",
        translated,
        USE,
    ),
]


def systems() -> Table:
    """All of them, in the order of the sources."""
    rows = [
        (name, command, card, figure() or "not run", verdict)
        for name, command, card, figure, verdict in ROWS
    ]
    return ("system", "<command", "<card", "<figure", "<verdict"), rows
