"""Money: what a joint model and a split one with its store cost in a month (DeFormer, appendix).

Compute costs time, a stored passage costs a read per pair and its bytes per month. Below some number of
queries a day the store costs more than it saves: `break_even` says where.
"""

import math
from dataclasses import dataclass
from typing import Any

from decoupled.errors import InputError
from decoupled.measure.table import ResultTable
from decoupled.model.codec import bytes_per_token, canonical, parse_codec
from decoupled.model.jsonable import to_json

DAYS = 30
JOINT_MS = 4600 / 640
"""Device time of a pair in DeFormer's example."""
SPLIT_SHARE = 1400 / 4600
"""Of that time, what its cross component takes."""


class _NotNegative:
    def __post_init__(self) -> None:
        for name, number in vars(self).items():
            if not number >= 0 or not math.isfinite(number):
                raise InputError(f"{name}={number}; give a number from 0")


@dataclass(frozen=True, kw_only=True)
class Prices(_NotNegative):
    """Dollars, as a cloud charges them. The defaults are those of DeFormer."""

    device_hour: float = 2.48
    reads_10k: float = 0.004
    """Ten thousand reads from the store."""
    gb_month: float = 0.02
    """A gigabyte (10^9 bytes) kept for a month."""


@dataclass(frozen=True, kw_only=True)
class Demand(_NotNegative):
    """What is asked, how long it takes, and what is kept."""

    queries_per_day: float
    candidates: int = 1
    """Passages that each query is scored against."""
    joint_ms: float
    """Device time of one pair in the joint model."""
    split_ms: float
    """Device time of one pair in the cross component."""
    stored_gb: float = 0.0
    index_ms: float = 0.0
    """Device time to encode one passage, paid once."""
    passages: int = 0


@dataclass(frozen=True, kw_only=True)
class Storage:
    """What the states of a corpus take. Text, offsets and vectors come on top (docs/results/states.md)."""

    passages: int
    tokens: float
    """Mean tokens of a passage, specials included."""
    width: int
    codec: str = "int8"

    def __post_init__(self) -> None:
        if self.passages < 1 or self.tokens <= 0:
            raise InputError(
                f"passages={self.passages}, tokens={self.tokens}; give at least one passage with tokens"
            )
        object.__setattr__(self, "codec", canonical(parse_codec(self.codec)))
        bytes_per_token(self.codec, self.width)

    @property
    def passage_bytes(self) -> float:
        """Bytes of a passage of mean length."""
        return self.tokens * bytes_per_token(self.codec, self.width)

    @property
    def total_bytes(self) -> float:
        """Bytes of the corpus."""
        return self.passages * self.passage_bytes


@dataclass(frozen=True, kw_only=True)
class Bill:
    """Dollars in a month, by what they pay for."""

    compute: float
    reads: float = 0.0
    storage: float = 0.0

    @property
    def total(self) -> float:
        """The whole month."""
        return self.compute + self.reads + self.storage

    def to_json(self) -> dict[str, float]:
        """Plain values, to the cent."""
        return {
            name: round(value, 2) for name, value in {**vars(self), "total": self.total}.items()
        }


def cost(  # noqa: PLR0913 (what a bill depends on)
    *,
    passages: int = 1_000_000,
    tokens: float = 150,
    width: int = 768,
    codec: str = "fp16",
    queries: float = 1_000_000,
    candidates: int = 1,
    joint_ms: float = JOINT_MS,
    split_ms: float | None = None,
    index_ms: float = 0,
    device_hour: float = Prices.device_hour,
    reads: float = Prices.reads_10k,
    gb_month: float = Prices.gb_month,
) -> dict[str, Any]:
    """Bytes, both bills of a month in dollars, and from how many queries a day the split pays.

    `queries` are those of a day. The defaults are the example of DeFormer's paper, and without `split_ms` its
    ratio of both times. Its 225 KiB a passage make 230.4 GB, of which the paper prints 226: so the split
    comes to 61.82 dollars here and to 61.7 there.
    """
    storage = Storage(passages=passages, tokens=tokens, width=width, codec=codec)
    demand = Demand(
        queries_per_day=queries,
        candidates=candidates,
        joint_ms=joint_ms,
        split_ms=joint_ms * SPLIT_SHARE if split_ms is None else split_ms,
        stored_gb=storage.total_bytes / 1e9,
        index_ms=index_ms,
        passages=passages,
    )
    prices = Prices(device_hour=device_hour, reads_10k=reads, gb_month=gb_month)
    return {
        "kind": "cost",
        "storage": to_json(storage),
        "demand": to_json(demand),
        "prices": to_json(prices),
        "passage_bytes": storage.passage_bytes,
        "total_bytes": storage.total_bytes,
        "joint": joint_bill(demand, prices).to_json(),
        "split": split_bill(demand, prices).to_json(),
        "break_even_queries_per_day": break_even(demand, prices),
        "encode_once": round(encode_once(demand, prices), 2),
    }


def joint_bill(demand: Demand, prices: Prices = Prices()) -> Bill:
    """A month of the joint model: every pair through every layer."""
    return Bill(compute=_pairs(demand) * _device(demand.joint_ms, prices))


def split_bill(demand: Demand, prices: Prices = Prices()) -> Bill:
    """A month of the split model: the cross component, a read for each pair, and the store."""
    pairs = _pairs(demand)
    return Bill(
        compute=pairs * _device(demand.split_ms, prices),
        reads=pairs / 10_000 * prices.reads_10k,
        storage=demand.stored_gb * prices.gb_month,
    )


def encode_once(demand: Demand, prices: Prices = Prices()) -> float:
    """Dollars to encode the corpus, paid once."""
    return demand.passages * _device(demand.index_ms, prices)


def break_even(demand: Demand, prices: Prices = Prices()) -> float | None:
    """Queries a day from which the split is the cheaper one; None when it never is."""
    saved = _device(demand.joint_ms - demand.split_ms, prices) - prices.reads_10k / 10_000
    saved *= DAYS * demand.candidates
    return demand.stored_gb * prices.gb_month / saved if saved > 0 else None


def _pairs(demand: Demand) -> float:
    return DAYS * demand.queries_per_day * demand.candidates


def _device(milliseconds: float, prices: Prices) -> float:
    return milliseconds / 3_600_000 * prices.device_hour


def bill_table(facts: dict[str, Any]) -> ResultTable:
    """Both bills of what `cost` gives."""
    rows = [
        (name, *(f"{facts[side][name]:,.2f}" for side in ("joint", "split")))
        for name in ("compute", "reads", "storage", "total")
    ]
    return ResultTable(columns=("dollars a month", "joint", "split"), rows=rows)


def described(facts: dict[str, Any]) -> dict[str, str]:
    """The rest of what `cost` gives, in words."""
    even = facts["break_even_queries_per_day"]
    return {
        "a passage": f"{facts['passage_bytes']:,.0f} bytes ({facts['storage']['codec']})",
        "the corpus": f"{facts['total_bytes'] / 1e9:,.1f} GB",
        "the split pays": "never" if even is None else f"from {even:,.0f} queries a day",
        "encoding, once": f"{facts['encode_once']:,.2f} dollars",
    }
