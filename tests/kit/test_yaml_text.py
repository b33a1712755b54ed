"""Invalid YAML from outside is an error, and never crashes the process."""

from __future__ import annotations

import pytest
import yaml

from watchkeeper.kit import yaml_text
from watchkeeper.kit.yaml_text import MAX_DEPTH


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 100_000, "- " * 100_000, "? " * 100_000])
def test_deep_nesting_is_an_error(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match=f"nested deeper than {MAX_DEPTH}"):
        yaml_text.load(text)
    with pytest.raises(yaml.YAMLError, match=f"nested deeper than {MAX_DEPTH}"):
        yaml_text.compose(text)


@pytest.mark.parametrize("text", ["since: 2026-13-45", "a: 1\n---\nb: 2", "a: [", "!!python/name:os.system a"])
def test_invalid_text_is_one_kind_of_error(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        yaml_text.load(text)


def test_other_yaml_is_read_as_by_pyyaml() -> None:
    deep = "[" * (MAX_DEPTH - 1) + "1" + "]" * (MAX_DEPTH - 1)
    wide = "- {a: [1, x], b: {c: 2026-11-16}}\n" * (3 * MAX_DEPTH)
    for text in (deep, wide, ""):
        assert yaml_text.load(text) == yaml.safe_load(text)
    assert yaml_text.load_all("a: 1\n---\nb: 2") == [{"a": 1}, {"b": 2}]
