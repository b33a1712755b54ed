"""Manifests with marks: filled with values and turned into templates, and values chosen one by one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.config import settings as config
from watchkeeper.errors import SettingsError
from watchkeeper.render import kubernetes, manifests

VALUES: dict[str, Any] = {"name": "x", "on": True, "off": False, "list": ["a b", "c"], "text": "one\n\ntwo\n", "n": 3}
FACTS = {"namespace": "wk"}
DEFAULTS = kubernetes.load_values(config.Settings())


def test_marks_become_values_lines_and_hashes() -> None:
    text = "a: @name@ in @namespace@\n#if on\nb: @n@\n#end\n#if off\nc: 1\n#end\n"
    text += "d:\n  #each list\ne: |\n  @text@\nf: @list@\n"
    filled = manifests.fill_manifest(text, VALUES, FACTS)
    assert yaml.safe_load(filled) == {
        "a": "x in wk",
        "b": 3,
        "d": ["a b", "c"],
        "e": "one\n\ntwo\n",
        "f": ["a b", "c"],
    }


def test_the_same_marks_become_helms_language() -> None:
    text = "a: @name@\n#if on\nb: @n@\n#end\n  #each list\n  @text@\nc: @sha256 text@ @namespace@\n"
    assert manifests.template_manifest(text, VALUES, FACTS) == (
        "a: {{ .Values.name }}\n{{- if .Values.on }}\nb: {{ .Values.n | toJson }}\n{{- end }}\n"
        "  {{- range .Values.list }}\n  - {{ . | toJson }}\n  {{- end }}\n"
        "{{- .Values.text | nindent 2 }}\nc: {{ .Values.text | sha256sum }} {{ .Release.Namespace }}\n"
    )


def test_a_mark_without_a_value_is_an_error_and_never_left_in_the_file() -> None:
    with pytest.raises(SettingsError, match=r"unknown value `agent\.nme`"):
        manifests.fill_manifest("a: @agent.nme@\n", VALUES, FACTS)


def leaves(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    elif "/" not in path and path != "hub.settings":
        yield path


def another(value: Any) -> st.SearchStrategy[Any]:
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int):
        return st.integers(0, 9)
    if isinstance(value, list):
        return st.lists(st.sampled_from(["a", "b: c", "#d"]), max_size=3)
    if isinstance(value, dict):
        return st.dictionaries(st.sampled_from(["x", "y/z"]), st.sampled_from(["1", "on"]), max_size=2)
    return st.sampled_from(["", "fast", "10Gi", "a: b", "#c", "yes", "1", "@name@"])


# Keys with a dot in them cannot be reached by a path; whole mappings above them can.
PATHS = [
    path for path in leaves(DEFAULTS) if not path.startswith(("agent.nodeSelector.", "prometheusOperator.labels."))
]
PATHS += ["agent.nodeSelector", "agent.resources", "prometheusOperator.labels"]


@pytest.mark.slow
@given(st.data())
def test_a_chosen_value_is_that_value_and_every_other_stays(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(PATHS))
    value = data.draw(another(manifests.value(DEFAULTS, path)))
    chosen = (
        f"{path}={yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix(chr(10)).removesuffix('...')}"
    )
    found = kubernetes.load_values(config.Settings(render=config.RenderSettings(values=(chosen.strip(),))))
    expected = copy.deepcopy(DEFAULTS)
    inner = expected
    *steps, last = path.split(".")
    for step in steps:
        inner = inner[step]
    inner[last] = value
    assert found == expected
