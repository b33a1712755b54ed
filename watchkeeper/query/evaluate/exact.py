"""Sums that do not lose small numbers beside large ones, for many columns at once.

Prometheus sums with Kahan's and Neumaier's correction. Here numbers are added pairwise in a tree and
the rounding error of each addition (Knuth's two-sum) is carried along, which NumPy can do for whole
levels of the tree. Numbers of one sign cannot cancel, so for them the plain pairwise sum is enough.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from watchkeeper.query.engine import Floats, Mask
from watchkeeper.query.evaluate.grouping import by_group, sizes_of
from watchkeeper.store.columns import Ints

# Rows that are added one after the other.
TURN = 128


def total(values: Floats) -> Floats:
    """Sum along the last axis."""
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
    found = _corrected(plain, sums[..., 0], errors[..., 0])
    return _without_overflow(found, lambda what: np.asarray(what(values).any(axis=-1)))


def grouped_total(values: Floats, starts: Ints) -> Floats:
    """Sum rows group by group; rows of a group lie together, each group begins at its `starts`."""
    plain = _plain_total(values, starts)
    if not _may_cancel(values):
        return plain
    sizes = sizes_of(starts, len(values))
    sums, errors = values, np.zeros_like(values)
    while int(sizes.max()) > 1:
        firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        place = np.arange(int(sizes.sum())) - np.repeat(firsts, sizes)
        is_left = place % 2 == 0
        has_right = is_left & (place + 1 < np.repeat(sizes, sizes))
        left = np.flatnonzero(is_left)
        partner = np.where(has_right[left], left + 1, left)
        other = np.where(has_right[left][:, None], sums[partner], 0.0)
        lost_before = errors[left] + np.where(has_right[left][:, None], errors[partner], 0.0)
        sums, lost = _two_sum(sums[left], other)
        errors = lost_before + lost
        sizes = (sizes + 1) // 2
    found = _corrected(plain, sums, errors)
    return _without_overflow(found, lambda what: by_group(np.logical_or, what(values), starts))


def _without_overflow(sums: Floats, any_is: Callable[[Callable[[Floats], Mask]], Mask]) -> Floats:
    """A sum with infinite terms of one sign is infinite, however far the others overflow to the other side."""
    if not np.isnan(sums).any():
        return sums
    high, low = any_is(np.isposinf), any_is(np.isneginf)
    is_lost = np.isnan(sums) & ~any_is(np.isnan) & (high != low)
    return np.where(is_lost, np.where(high, np.inf, -np.inf), sums)


def _plain_total(values: Floats, starts: Ints) -> Floats:
    """Sums of groups, those of many rows in two turns: an error grows with the length of a sum."""
    sizes = sizes_of(starts, len(values))
    if values.shape[1] == 1 or int(sizes.max(initial=0)) <= TURN:
        return by_group(np.add, values, starts)
    turns = -(-sizes // TURN)
    firsts = np.cumsum(turns) - turns
    inner = np.repeat(starts, turns) + TURN * (np.arange(int(turns.sum())) - np.repeat(firsts, turns))
    return by_group(np.add, by_group(np.add, values, inner), firsts)


def _may_cancel(values: Floats) -> bool:
    return bool(values.size) and not (values.min() >= 0) and not (values.max() <= 0)


def _two_sum(left: Floats, right: Floats) -> tuple[Floats, Floats]:
    with np.errstate(all="ignore"):
        sums = left + right
        bent = sums - left
        return sums, (left - (sums - bent)) + (right - bent)


def _corrected(plain: Floats, sums: Floats, errors: Floats) -> Floats:
    """Infinite and NaN sums have no rounding error to correct."""
    return np.where(np.isfinite(sums) & np.isfinite(errors), sums + errors, plain)


def _padded(values: Floats) -> Floats:
    return np.concatenate([values, np.zeros((*values.shape[:-1], 1))], axis=-1)
