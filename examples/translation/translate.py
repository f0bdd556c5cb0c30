"""Translate a line, or the lines of standard input, with a model that train.py made.

python examples/translation/translate.py runs/base-0 "A dog runs on the grass."
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from beam import Beam, translate
from tokenizers import Tokenizer
from translator import Translator

from decoupled.errors import DecoupledError


def main() -> None:
    """Print a translation per line."""
    beam = Beam()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="folder of a run")
    parser.add_argument("text", nargs="?", help="standard input where it is missing")
    parser.add_argument("--beam", type=int, default=beam.width)
    parser.add_argument("--penalty", type=float, default=beam.penalty)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    translator = Translator.load(args.model, torch.device(args.device))
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    texts = [args.text] if args.text is not None else sys.stdin.read().splitlines()
    how = Beam(width=args.beam, penalty=args.penalty)
    print("\n".join(translate(translator, tokenizer, texts, how)))


if __name__ == "__main__":
    try:
        main()
    except DecoupledError as error:
        sys.exit(str(error))
