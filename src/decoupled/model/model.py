"""A split model in torch: its two components, and how it is made, saved and loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.model import folder
from decoupled.model.hf import checkpoint, convert, hub
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.head import HeadSpec
from decoupled.model.prompts import prompt_spec
from decoupled.model.spec import CrossEmbed, ModelSpec, OneWay, Positions, Stored
from decoupled.model.split import with_split
from decoupled.model.tokens import Tokenizer, text_spec


class Model:
    """A pair encoder, split at `spec.split`, with its tokenizer."""

    def __init__(
        self, net: PairEncoder, tokenizer: Tokenizer, history: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.net = net
        self.tokenizer = tokenizer
        self.history = tuple(history)

    def __repr__(self) -> str:
        heads = "+".join(head.kind for head in self.spec.heads) or "no head"
        return f"Model({self.spec.family}, split {self.spec.split} of {len(self.spec.layers)}, {heads})"

    @property
    def spec(self) -> ModelSpec:
        """The spec that this model was built from."""
        return self.net.spec

    @property
    def device(self) -> torch.device:
        """The device that holds the weights."""
        return next(self.net.parameters()).device

    @classmethod
    def split(
        cls,
        source: str | Path | Model,
        *,
        at: int,
        positions: Positions | None = None,
        cross_embed: CrossEmbed = "none",
        one_way: OneWay = (),
        passage_tokens: int | None = None,
        stride: int | None = None,
        store: Stored = "state",
    ) -> Model:
        """Split a Hugging Face checkpoint (folder or hub name), a model folder or a model at layer `at`.

        The weights stay as they are. `at=0` is the ordinary joint model. Positions default to `joint` there
        and to `restart` elsewhere. In the layers `one_way` (counted from 1, or `auto`) passages stay as they
        were stored and only the query advances: far cheaper, and in need of `distill`. Of a decoder that
        reads the passage first, `store="kv"` keeps every score.
        """
        if not isinstance(at, int):
            raise SpecError(f"at={at!r}; give a layer, or have agreement.deepest_split measure one")
        whole = source if isinstance(source, Model) else cls.open(source)
        spec = with_split(
            whole.spec,
            at,
            positions=positions,
            cross_embed=cross_embed,
            one_way=one_way,
            store=store,
        )
        text = spec.text
        if passage_tokens is not None:
            special = text.passage_tokens - whole.tokenizer.passage_room
            if passage_tokens <= special:
                raise SpecError(
                    f"passage_tokens={passage_tokens}, but {special} of a window are special tokens; "
                    f"choose {special + 1} or more"
                )
            within = min(text.stride, passage_tokens - special)
            text = replace(text, passage_tokens=passage_tokens, stride=within)
        if stride is not None:
            text = replace(text, stride=stride)
        did = {"did": "split", "at": at}
        did |= {"one_way": list(spec.one_way)} if spec.one_way else {}
        return whole.rebuild(replace(spec, text=text), did)

    @classmethod
    def open(cls, source: str | Path, template: str | None = None) -> Model:
        """A model folder as it is, or a Hugging Face checkpoint as the joint model (split 0).

        A decoder reads a `template`, a name or a JSON file; by default that which its name stands for.
        """
        if (path := hub.stored(source)) is not None:
            return cls.load(path)
        read = convert.load(source, template)
        encoder = read.encoder
        with checkpoint.readable(read.folder):
            tokenizer_json = checkpoint.tokenizer_file(read.folder).read_text(encoding="utf-8")
        longest = encoder.max_tokens
        if read.template is not None:
            text = prompt_spec(tokenizer_json, read.template, max_tokens=longest)
        else:
            types = encoder.embedding.types
            text = text_spec(tokenizer_json, max_tokens=longest, types=types)
        spec = ModelSpec(family=read.family, encoder=encoder, heads=read.heads, text=text)
        net = build(spec, read.weights)
        tokenizer = Tokenizer(tokenizer_json, text, encoder.embedding.vocab)
        return cls(net, tokenizer, [{"did": "read", "from": str(source)}])

    @classmethod
    def load(cls, path: str | Path) -> Model:
        """A model folder."""
        spec = folder.read_spec(path)
        tensors = {n: torch.from_numpy(t) for n, t in folder.read_tensors(path).items()}
        return cls(
            build(spec, tensors), folder.read_tokenizer(path, spec), folder.read_history(path)
        )

    def save(self, path: str | Path, *, compact: bool = False) -> None:
        """Write the model folder; an older model at the path is replaced.

        `compact` rounds the weights to little more than a quarter of their size; load the folder to have what
        it holds.
        """
        folder.write(
            path,
            spec=self.spec,
            tensors=self.tensors(),
            tokenizer_json=self.tokenizer.json,
            history=self.history,
            compact=compact,
        )

    def with_heads(self, *heads: HeadSpec, seed: int = 0) -> Model:
        """The same encoder with new heads beside those it has; new ones start at random."""
        spec = replace(self.spec, heads=(*self.spec.heads, *heads))
        kinds = "+".join(head.kind for head in heads)
        return self.rebuild(spec, {"did": "add heads", "heads": kinds, "seed": seed}, seed=seed)

    def rank_by(self, label: str) -> Model:
        """The same classifier of two labels, ranking passages by the odds of this one."""
        head = self.spec.head("classes")
        if len(head.labels) != 2 or label not in head.labels:
            raise SpecError(
                f"rank label {label!r}, but the model's labels are {', '.join(head.labels)}; "
                "choose one of two"
            )
        heads = tuple(replace(h, rank_label=label) if h is head else h for h in self.spec.heads)
        return self.rebuild(replace(self.spec, heads=heads), {"did": "rank by", "label": label})

    def rebuild(self, spec: ModelSpec, did: Mapping[str, Any], *, seed: int = 0) -> Model:
        """The same weights under another spec; tensors that only the new one has start afresh.

        What was learnt about the scores is left out: it holds for the model that it was learnt with.
        """
        spec = replace(spec, scoring=None)
        # New tensors start from the seed, and the caller's random state is left untouched.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = PairEncoder(spec)
        old, new = self.net.state_dict(), net.state_dict()
        kept = {
            name: old[name] for name in new if name in old and old[name].shape == new[name].shape
        }
        net.load_state_dict({**new, **kept})
        # A cross embedding that is new starts from the input tables, so that the split model is
        # near the old.
        if net.cross_embedding is not None and self.net.cross_embedding is None:
            net.cross_embedding.copy_from(
                net.embedding, spec.text.query_type, spec.text.passage_type
            )
        tokenizer = Tokenizer(self.tokenizer.json, spec.text)
        return Model(net.eval().to(self.device), tokenizer, [*self.history, did])

    def to(self, device: str | torch.device, dtype: torch.dtype | None = None) -> Model:
        """Move the weights, in place, and return the model."""
        self.net.to(device=device, dtype=dtype)
        return self

    def tensors(self, prefix: str = "") -> dict[str, np.ndarray]:
        """The weights whose names begin so, in full precision; codes of a quantised map stay codes."""
        own = self.net.state_dict().items()
        return {n: _full(t).cpu().numpy() for n, t in own if n.startswith(prefix)}

    @cached_property
    def fingerprint(self) -> str:
        """Digest of what made the states of a passage; an index opens only with the same one."""
        return folder.fingerprint(self.spec, self.tensors(), self.tokenizer.json)


def build(spec: ModelSpec, tensors: Mapping[str, Tensor]) -> PairEncoder:
    """The modules of a spec with exactly these tensors: none missing, none surplus, every shape right."""
    # Without memory: the tensors are assigned afterwards, not copied over random ones.
    with torch.device("meta"):
        net = PairEncoder(spec)
    expected = {name: tuple(t.shape) for name, t in net.state_dict().items()}
    folder.check_shapes(expected, {name: tuple(t.shape) for name, t in tensors.items()})
    net.load_state_dict({n: _full(t) for n, t in tensors.items()}, assign=True)
    return net.eval()


def _full(tensor: Tensor) -> Tensor:
    """The tensor in full precision; integer codes of a quantised matrix stay codes."""
    return tensor.float() if tensor.is_floating_point() else tensor
