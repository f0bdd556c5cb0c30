"""The families that checkpoints are read from and written to."""

from __future__ import annotations

from decoupled.errors import SpecError
from decoupled.model.hf import bert
from decoupled.model.hf.deberta import DEBERTA
from decoupled.model.hf.family import Family
from decoupled.model.hf.modernbert import MODERNBERT

FAMILIES: dict[str, Family] = {f.name: f for f in (*bert.FAMILIES, MODERNBERT, DEBERTA)}


def family_of(model_type: object) -> Family:
    """The family of that `model_type`, or an error that lists those there are."""
    family = FAMILIES.get(str(model_type))
    if family is None:
        raise SpecError(
            f"config.json has model_type={model_type!r}, which is no known family; "
            f"expected one of {', '.join(FAMILIES)}: use a checkpoint of one of them"
        )
    return family
