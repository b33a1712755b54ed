"""What a healthy GPU of each model reaches, and how far below that is worth a word: packs/gpu_expectations.csv.

`diag_judge` asks for a model by the name that the driver gives it. A row is `measured` on a healthy GPU, or
`estimated`: the data sheet's peak times the share of it that such a test reaches (see the row's source); the less
sure the number, the further below it a GPU may be. Limits of health are packs/health_limits.csv.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from watchkeeper.catalogue import pack


class Basis(StrEnum):
    MEASURED = "measured"
    ESTIMATED = "estimated"


@dataclass(frozen=True, slots=True)
class Shares:
    """Below these shares of what is expected a result is a warning, or a failure."""

    warn: float
    fail: float


# Healthy H200s differed by 4 % in bf16 products (769 to 798 TFLOP/s, between machines and runs).
SHARES: Mapping[Basis, Shares] = {
    Basis.MEASURED: Shares(0.92, 0.80),
    Basis.ESTIMATED: Shares(0.80, 0.60),
}
# GPUs of one node share model, driver and air: they differ less than an estimate is wrong.
PEER_SHARES = Shares(0.93, 0.85)


@dataclass(frozen=True, slots=True)
class Expectation:
    """What one test reaches on one model."""

    model: str
    test: str
    expected: float
    unit: str
    basis: Basis
    source: str


@cache
def table() -> tuple[tuple[re.Pattern[str], Expectation], ...]:
    return pack.load("gpu_expectations.csv", _read)


@cache
def of_model(model: str) -> Mapping[str, Expectation]:
    """By test; the first row whose pattern fits the driver's name of the GPU. Empty: nobody has said."""
    found: dict[str, Expectation] = {}
    for pattern, row in table():
        if pattern.fullmatch(model):
            found.setdefault(row.test, row)
    return found


@cache
def health_limits() -> Mapping[str, float]:
    """The limit of each health check, by its name."""
    return dict(pack.load("health_limits.csv", lambda cells: (pack.required(cells["check"]), float(cells["limit"]))))


@cache
def health_xids() -> Mapping[int, str]:
    """The verdict of DCGM's health check about each Xid that it watches."""
    return dict(pack.load("health_xids.csv", lambda cells: (int(cells["xid"]), pack.required(cells["verdict"]))))


def _read(cells: Mapping[str, str]) -> tuple[re.Pattern[str], Expectation]:
    expected = float(cells["expected"])
    if expected <= 0:
        raise ValueError(f"expected {expected:g} is not above 0")
    row = Expectation(
        pack.required(cells["model"]),
        pack.required(cells["test"]),
        expected,
        pack.required(cells["unit"]),
        Basis(cells["basis"]),
        pack.required(cells["source"]),
    )
    pack.required(cells["checked"])
    return re.compile(row.model), row
