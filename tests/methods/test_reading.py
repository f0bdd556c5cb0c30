"""How many candidates are enough: chosen by what leaving the others costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from decoupled.methods.exits.fit import MARGINS, choose_exits, layers_run
from decoupled.methods.reading import KEEPS, MOST, Early, Read, choose_reading
from decoupled.model.model import Model
from decoupled.model.parts.exits import ExitSpec
from decoupled.model.parts.late import LateSpec, reading

LATE = LateSpec(width=8)


def reads(
    place: int,
    *,
    count: int = 20,
    k: int = 1,
    exits: Callable[[np.ndarray], tuple[np.ndarray, ...]] = lambda logits: (),
) -> list[Read]:
    """Queries whose one right candidate of 100 has that place; the guard reads two more than the share."""
    draw, made = np.random.default_rng(place), []
    for _ in range(count):
        order = draw.permutation(100)
        late = np.empty(100, np.float32)
        late[order] = np.linspace(2, -2, 100)
        right = order[place]
        logits = late.astype(np.float64)
        logits[right] += 0.5
        made.append(
            Read(
                early=Early(late=late, exits=exits(logits)),
                prior=np.zeros(100),
                logits=logits,
                k=k,
                value=lambda which, right=right: float(right in which),
            )
        )
    return made


def test_the_least_share_that_keeps_what_counts_is_chosen():
    for place, at_least in ((0, KEEPS[0]), (11, 0.1), (12, 0.15), (60, 0.75)):
        chosen, cuts = choose_reading(LATE, [reads(place)], [])
        assert chosen.keep == at_least, (place, cuts)
        assert chosen.slope > 0 and chosen.loss.ndcg == 0 and chosen.loss.f1 is None
        assert cuts[-1]["keep"] == 1.0 and cuts[-1]["search_reads"] == 100
        if at_least > KEEPS[0]:
            assert cuts[0]["ndcg_loss"] == 1.0


def test_answers_and_every_field_have_their_say():
    fields = [reads(0), reads(1), reads(2)]
    assert choose_reading(LATE, fields, reads(23))[0].keep == 0.25
    assert choose_reading(LATE, [*fields, reads(45)], reads(3))[0].keep == 0.5
    chosen, _ = choose_reading(LATE, fields, [*reads(3, count=1999), *reads(90, count=1)])
    assert chosen.keep == KEEPS[0] and 0 < chosen.loss.f1 <= MOST.f1


@pytest.fixture
def spec(model):
    split = Model.split(model("bert", "rank"), at=1).spec
    return replace(split, exits=(ExitSpec(layer=2),))


@pytest.mark.parametrize("behind", [0.0, 0.6, 1.4])
def test_the_least_margin_that_keeps_what_counts_is_chosen(behind, spec):
    """The exit has the right candidate so far behind the first."""

    def exits(logits):
        said = logits - logits.max()
        said[logits.argmax()] = -behind
        said[logits.argmin()] = 0.0
        return (said,)

    found, tried = choose_exits(spec, [reads(0, exits=exits)], [])
    enough = [margin for margin in MARGINS if margin >= behind]
    assert found[0].margin == enough[-1] and found[0].stops > 0.5
    assert [row["ndcg"] for row in tried] == [0.0] * len(enough) + [1.0] * (behind > 0)


def test_an_exit_that_stops_too_few_is_not_used(spec):
    same = lambda logits: (np.zeros(len(logits)),)  # noqa: E731
    found, tried = choose_exits(spec, [reads(0, exits=same)], reads(1, exits=same))
    assert found == spec.exits and {row["stops"] for row in tried} == {0.0}
    few = replace(spec, late=replace(LATE, keep=0.08, slope=1.0))
    best = lambda logits: (logits,)  # noqa: E731
    found, _ = choose_exits(few, [reads(0, exits=best)], [])
    assert found[0].margin == 0.0 and found[0].stops > 0.8, "of those that late interaction leaves"
    assert layers_run(few) == 1, "an exit without a margin is not run"
    # The exit after the first of two cross layers: a fifth of one for all, 1.2 for those that go on.
    stopping = replace(few, exits=(replace(few.exits[0], margin=1.0, stops=0.75),))
    assert layers_run(stopping) == pytest.approx((0.2 + 0.25 * 1.2) / 1.2, abs=1e-3)


def test_what_a_search_reads_is_told():
    chosen, _ = choose_reading(LATE, [reads(0)], reads(0))
    assert reading(chosen) == {"share": KEEPS[0], "ndcg_loss": 0.0, "f1_loss": 0.0}
    assert reading(None) == "all: the model learnt no late interaction"
    assert reading(LATE) == "100% of a hundred candidates; no loss was measured"


@pytest.mark.parametrize("keep", [0.0, 1.2])
def test_a_share_is_a_share(keep):
    from decoupled.errors import SpecError

    with pytest.raises(SpecError, match=f"late.keep={keep}; choose a share"):
        LateSpec(width=8, keep=keep)
