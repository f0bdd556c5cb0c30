r"""Average what two models compute above the split, and leave what an index stores as it is.

    python examples/starter/average.py OLD NEW -o OUT --share 0.6

The model in OUT has `share` of NEW's cross layers, heads and late interaction, and the rest of OLD's. States
and vectors are OLD's, so that it serves the indexes that OLD made.
"""

import argparse
from pathlib import Path

from decoupled import Model
from decoupled.errors import InputError


def averaged(old: Model, new: Model, share: float) -> Model:
    """A model with the input component of `old`, and above the split a weighted mean of both."""
    if old.spec != new.spec:
        raise InputError("the models differ in their specs; give two of the same shape")
    made = old.rebuild(old.spec, {"did": "average", "share": share, "with": new.history[-1]})
    weights, others = made.net.state_dict(), new.net.state_dict()
    for name, tensor in weights.items():
        if not old.spec.is_input(name):
            tensor.lerp_(others[name], share)
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--share", type=float, default=0.5)
    args = parser.parse_args()
    model = averaged(Model.load(args.old), Model.load(args.new), args.share)
    model.save(args.out, compact=True)
