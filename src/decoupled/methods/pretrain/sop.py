"""Sentence order prediction (ALBERT): both texts are of one place, so what they are about says nothing."""

from typing import ClassVar

from decoupled.methods.pretrain.nsp import Nsp
from decoupled.methods.pretrain.segments import Builder, ordered


class Sop(Nsp):
    """Predicts whether two consecutive texts are in their order or swapped."""

    build: ClassVar[Builder] = staticmethod(ordered)


OBJECTIVE = Sop
