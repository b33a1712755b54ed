"""The short form of the fuzzing: some hundred broken inputs for each reader; `python -m tests.fuzz` has no end."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, Target, feed, mutate
from tests.properties import examples

EACH = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@EACH
@examples(60)
@given(choice=st.integers(0, 10_000), seed=st.integers(0, 2**32))
def test_input_that_is_almost_right_is_read_or_refused_with_words(target: Target, choice: int, seed: int) -> None:
    content = mutate(target.seeds[choice % len(target.seeds)], random.Random(seed))
    assert feed(target, content) == "", content.hex()


@EACH
@examples(40)
@given(content=st.binary(max_size=300))
def test_input_that_is_noise_is_read_or_refused_with_words(target: Target, content: bytes) -> None:
    assert feed(target, content) == "", content.hex()


@EACH
def test_what_is_right_is_read(target: Target) -> None:
    for content in target.seeds:
        assert feed(target, content) == ""
