"""Compensated sums of many columns at once, which do not lose small numbers next to large ones.

Prometheus sums with Kahan's and Neumaier's correction. Here numbers are added pairwise in a tree, with the rounding
error of each addition (Knuth's two-sum), which NumPy computes for whole levels of the tree.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from watchkeeper.query.engine import Floats, Mask
from watchkeeper.query.evaluate.grouping import group_sizes, reduce_groups
from watchkeeper.store.columns import Ints

# Rows that are added sequentially.
CHUNK_ROWS = 128


def sum_last_axis(values: Floats) -> Floats:
    plain: Floats = values.sum(axis=-1)
    if not _may_cancel(values):
        return plain
    sums, errors = values, np.zeros_like(values)
    while sums.shape[-1] > 1:
        if sums.shape[-1] % 2:
            sums, errors = _padded(sums), _padded(errors)
        left, right = sums[..., ::2], sums[..., 1::2]
        sums, lost = _two_sum(left, right)
        errors = errors[..., ::2] + errors[..., 1::2] + lost
    corrected = _corrected(plain, sums[..., 0], errors[..., 0])
    return _without_overflow(corrected, lambda predicate: np.asarray(predicate(values).any(axis=-1)))


def sum_groups(values: Floats, starts: Ints) -> Floats:
    """Sum the rows of each group; rows are sorted by group, and groups begin at `starts`."""
    plain = _uncorrected_sums(values, starts)
    if not _may_cancel(values):
        return plain
    sizes = group_sizes(starts, len(values))
    sums, errors = values, np.zeros_like(values)
    while int(sizes.max()) > 1:
        firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        position = np.arange(int(sizes.sum())) - np.repeat(firsts, sizes)
        is_left = position % 2 == 0
        has_right = is_left & (position + 1 < np.repeat(sizes, sizes))
        left = np.flatnonzero(is_left)
        partner = np.where(has_right[left], left + 1, left)
        other = np.where(has_right[left][:, None], sums[partner], 0.0)
        lost_before = errors[left] + np.where(has_right[left][:, None], errors[partner], 0.0)
        sums, lost = _two_sum(sums[left], other)
        errors = lost_before + lost
        sizes = (sizes + 1) // 2
    corrected = _corrected(plain, sums, errors)
    return _without_overflow(corrected, lambda predicate: reduce_groups(np.logical_or, predicate(values), starts))


def _without_overflow(sums: Floats, any_where: Callable[[Callable[[Floats], Mask]], Mask]) -> Floats:
    """Replace NaN by infinity in sums whose infinite terms all have the same sign: finite terms overflowed."""
    if not np.isnan(sums).any():
        return sums
    high, low = any_where(np.isposinf), any_where(np.isneginf)
    is_lost = np.isnan(sums) & ~any_where(np.isnan) & (high != low)
    return np.where(is_lost, np.where(high, np.inf, -np.inf), sums)


def _uncorrected_sums(values: Floats, starts: Ints) -> Floats:
    """Sums of groups; large groups are summed in chunks, because the error grows with the length of a sum."""
    sizes = group_sizes(starts, len(values))
    if values.shape[1] == 1 or int(sizes.max(initial=0)) <= CHUNK_ROWS:
        return reduce_groups(np.add, values, starts)
    chunks = -(-sizes // CHUNK_ROWS)
    firsts = np.cumsum(chunks) - chunks
    inner = np.repeat(starts, chunks) + CHUNK_ROWS * (np.arange(int(chunks.sum())) - np.repeat(firsts, chunks))
    return reduce_groups(np.add, reduce_groups(np.add, values, inner), firsts)


def _may_cancel(values: Floats) -> bool:
    return bool(values.size) and not (values.min() >= 0) and not (values.max() <= 0)


def _two_sum(left: Floats, right: Floats) -> tuple[Floats, Floats]:
    with np.errstate(all="ignore"):
        sums = left + right
        added = sums - left
        return sums, (left - (sums - added)) + (right - added)


def _corrected(plain: Floats, sums: Floats, errors: Floats) -> Floats:
    """Add the rounding errors to finite sums."""
    return np.where(np.isfinite(sums) & np.isfinite(errors), sums + errors, plain)


def _padded(values: Floats) -> Floats:
    return np.concatenate([values, np.zeros((*values.shape[:-1], 1))], axis=-1)
