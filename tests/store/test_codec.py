"""Packed numbers come back bit for bit, and damaged ones are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from watchkeeper import errors
from watchkeeper.model.samples import STALE
from watchkeeper.store import codec, columns

SHAPES = arrays.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=20)
AWKWARD = st.one_of(
    st.floats(),
    st.sampled_from([STALE, columns.ABSENT, columns.PLAIN_NAN, -0.0, 2.0**63, -(2.0**63), 1e300]),
    st.integers(-(10**9), 10**9).map(lambda number: number / 1000),
    st.integers(-(2**60), 2**60).map(float),
)


@pytest.mark.slow
@given(arrays.arrays(np.float64, SHAPES, elements=AWKWARD))
def test_floats_come_back_bit_for_bit(matrix: np.ndarray) -> None:
    unpacked = codec.unpack_floats(codec.pack_floats(matrix))
    assert unpacked.shape == matrix.shape
    assert (unpacked.view(np.int64) == matrix.view(np.int64)).all()


@given(arrays.arrays(np.int64, SHAPES))
def test_integers_come_back_even_where_differences_overflow(matrix: np.ndarray) -> None:
    assert (codec.unpack_ints(codec.pack_ints(matrix)) == matrix).all()


def test_decimals_of_an_exporter_cost_a_fraction_of_their_eight_bytes() -> None:
    watts = np.round(400 + np.random.default_rng(1).normal(0, 2, (100, 480)), 3)
    assert len(codec.pack_floats(watts)) / watts.size < 2.2
    assert len(codec.pack_ints(np.arange(480)[None, :] * 15_000 + np.arange(50)[:, None])) < 400


def test_gaps_and_markers_among_decimals_need_few_bytes() -> None:
    matrix = np.full((50, 480), 61.0)
    matrix[:, 100:300] = columns.ABSENT
    matrix[:, 99] = STALE
    assert len(codec.pack_floats(matrix)) < 500


@given(arrays.arrays(np.float64, (3, 5)), st.data())
def test_truncated_numbers_are_a_store_error(matrix: np.ndarray, draw: st.DataObject) -> None:
    packed = codec.pack_floats(matrix)
    with pytest.raises(errors.StoreError):
        codec.unpack_floats(packed[: draw.draw(st.integers(0, len(packed) - 1))])
