"""Samples: the stale marker is one NaN among many."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.model.samples import STALE, is_stale


def test_the_stale_marker_is_a_nan_that_is_recognised() -> None:
    assert math.isnan(STALE)
    assert is_stale(STALE)


@given(st.floats(allow_nan=True))
def test_no_ordinary_value_equals_the_stale_marker(value: float) -> None:
    assert not is_stale(value)
    assert not is_stale(float("nan"))
