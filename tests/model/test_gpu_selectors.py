"""GPU selectors that users write, and the GPUs that they match."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.model.gpu_selectors import SelectableGpu, parse_selection

GPUS = [SelectableGpu(index, f"GPU-{index}aaaaaaa-0000", f"0000:{16 + index:02x}:00") for index in range(8)]


def meant(*texts: str) -> list[int | None]:
    chosen = parse_selection(texts)
    return [gpu.index for gpu in GPUS if chosen.includes(gpu)]


@pytest.mark.parametrize(
    ("texts", "indices"),
    [
        (["0"], [0]),
        (["0,2", "5"], [0, 2, 5]),
        (["1-3"], [1, 2, 3]),
        (["GPU-2aaaaaaa-0000"], [2]),
        (["GPU-2A"], [2]),
        (["0000:13:00.0"], [3]),
        (["00000000:13:00.0", "14:00.0"], [3, 4]),
        (["4/1"], [4]),
        (["MIG-GPU-5aaaaaaa-0000/1/0"], [5]),
        ([" 6 , "], [6]),
    ],
)
def test_every_spelling_names_its_gpu(texts: list[str], indices: list[int]) -> None:
    assert meant(*texts) == indices


def test_a_mig_instance_is_selected_by_its_uuid_on_any_gpu() -> None:
    cut = SelectableGpu(1, "GPU-1", None, {"MIG-8A11": 3, "MIG-8b22": 4})
    chosen = parse_selection(["MIG-8a"])
    assert (chosen.includes(cut), chosen.slices(cut), chosen.includes(GPUS[0])) == (True, frozenset({3}), False)
    assert chosen.unmatched_texts(GPUS) == ["MIG-8a"]
    assert parse_selection(["MIG-8a,1"]).slices(cut) is None


def test_mig_instances_are_distinguished_from_whole_gpus() -> None:
    chosen = parse_selection(["0/1,0/2,3,3/1"])
    assert [chosen.slices(GPUS[index]) for index in (0, 3, 4)] == [frozenset({1, 2}), None, None]


def test_selectors_that_match_nothing_are_listed() -> None:
    assert parse_selection(["0,9,GPU-f,11:00.0"]).unmatched_texts(GPUS) == ["9", "GPU-f"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("3-1", "is reversed; write 1-3"),
        ("0-1024", "the highest index is 1023"),
        ("MIG-xyz", "does not select a GPU"),
        ("first", "does not select a GPU; write an index"),
        ("-1", "does not select a GPU"),
        ("²", "does not select a GPU"),
        ("99999", "does not select a GPU"),
        ("GPU-", "does not select a GPU"),
        (" , ", "no GPU selected"),
        ("0-1023,0-5", "the limit is 1024"),
    ],
)
def test_an_invalid_selector_is_refused_with_the_valid_forms(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_selection([text])


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ValueError):
        assert parse_selection([text]).selectors
