"""Rank passages with exported graphs: onnxruntime, tokenizers and numpy, and nothing else.

decoupled export MODEL --runtime onnx
python examples/onnx_rank.py MODEL "Who wrote Dracula?" passages.txt
"""

import argparse
import json
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

BATCH = 16


class Ranker:
    """A model folder with its graphs; passages are encoded once and kept as int8 codes with scales."""

    def __init__(self, folder: Path, *, int8: bool = False) -> None:
        self.text = json.loads((folder / "spec.json").read_text())["text"]
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        end = "-int8.onnx" if int8 else ".onnx"
        self.query, self.passage, self.cross = (
            onnxruntime.InferenceSession(str(folder / "onnx" / (name + end)))
            for name in ("query", "passage", "cross")
        )

    def ids(self, side: str, text: str) -> list[int]:
        """Token ids of a text between the special tokens of its side."""
        before, after = self.text[f"{side}_prefix"], self.text[f"{side}_suffix"]
        room = self.text[f"{side}_tokens"] - len(before) - len(after)
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids[:room]
        return [*before, *ids, *after]

    def store(self, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """The codes and the scales of each passage."""
        stored = []
        for text in texts:
            ids = self.ids("passage", text)
            feed = {"ids": np.asarray([ids]), "lengths": np.asarray([len(ids)])}
            states = self.passage.run(["states"], feed)[0][0]
            scales = np.maximum(np.abs(states).max(1, keepdims=True) / 127, 6e-8).astype(np.float16)
            codes = np.rint(states / scales.astype(np.float32)).clip(-127, 127).astype(np.int8)
            stored.append((codes, scales))
        return stored

    def rank(self, query: str, stored: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """The rank logit of each stored passage."""
        ids = np.asarray([self.ids("query", query)])
        (asked,) = self.query.run(["states"], {"ids": ids, "lengths": np.asarray([ids.shape[1]])})
        scores = np.zeros(len(stored), np.float32)
        # Passages of like length together, a few at a time: padding is little, and so is memory.
        order = sorted(range(len(stored)), key=lambda number: len(stored[number][0]))
        for some in (order[n : n + BATCH] for n in range(0, len(order), BATCH)):
            lengths = np.asarray([len(stored[number][0]) for number in some])
            width = stored[0][0].shape[1]
            passages = np.zeros((len(some), lengths.max(), width), np.float32)
            for row, number in zip(passages, some, strict=True):
                codes, scales = stored[number]
                row[: len(codes)] = codes * scales.astype(np.float32)
            feed = {"query": asked, "passages": passages, "lengths": lengths}
            scores[some] = self.cross.run(["rank"], feed)[0][:, 0]
        return scores


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("query")
    parser.add_argument("passages", type=Path, help="a file with one passage a line")
    parser.add_argument("--int8", action="store_true", help="the graphs of `export --int8`")
    args = parser.parse_args()
    ranker, texts = Ranker(args.model, int8=args.int8), args.passages.read_text().splitlines()
    scores = ranker.rank(args.query, ranker.store(texts))
    for number in np.argsort(-scores):
        print(f"{scores[number]:.3f}  {texts[number]}")
