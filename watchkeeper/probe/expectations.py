"""Expected test results of a healthy GPU of each model (packs/gpu_expectations.csv), and the shares that warn or fail.

A row is `measured` on a healthy GPU, or `estimated` as the data sheet's peak times the share that such a test reaches
(see the row's source). Estimates get wider limits.
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
class ShareLimits:
    """A result below these shares of the expected value is a warning or a failure."""

    warn: float
    fail: float


# Healthy H200s differed by 4 % in bf16 products (769 to 798 TFLOP/s, between machines and runs).
LIMITS_BY_BASIS: Mapping[Basis, ShareLimits] = {
    Basis.MEASURED: ShareLimits(0.92, 0.80),
    Basis.ESTIMATED: ShareLimits(0.80, 0.60),
}
# GPUs of one node share model, driver and cooling: they differ less than estimates do.
PEER_LIMITS = ShareLimits(0.93, 0.85)


@dataclass(frozen=True, slots=True)
class Expectation:
    model: str
    test: str
    expected: float
    unit: str
    basis: Basis
    source: str


@cache
def load_table() -> tuple[tuple[re.Pattern[str], Expectation], ...]:
    return pack.load("gpu_expectations.csv", _parse_row)


@cache
def expectations_by_test(model: str) -> Mapping[str, Expectation]:
    """Expectations by test, from the first rows that match the driver's name of the GPU; empty for an unknown model."""
    by_test: dict[str, Expectation] = {}
    for pattern, row in load_table():
        if pattern.fullmatch(model):
            by_test.setdefault(row.test, row)
    return by_test


@cache
def health_limits() -> Mapping[str, float]:
    return dict(pack.load("health_limits.csv", lambda cells: (pack.required(cells["check"]), float(cells["limit"]))))


@cache
def health_xids() -> Mapping[int, str]:
    """The verdict of DCGM's health check for each Xid that it monitors."""
    return dict(pack.load("health_xids.csv", lambda cells: (int(cells["xid"]), pack.required(cells["verdict"]))))


def _parse_row(cells: Mapping[str, str]) -> tuple[re.Pattern[str], Expectation]:
    expected = float(cells["expected"])
    if expected <= 0:
        raise ValueError(f"expected {expected:g} is not above 0")
    model, test, unit, source, _ = (
        pack.required(cells[name]) for name in ("model", "test", "unit", "source", "checked")
    )
    return re.compile(model), Expectation(model, test, expected, unit, Basis(cells["basis"]), source)
