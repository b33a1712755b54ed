"""Prometheus' relabelling: rules that change, keep or drop a label set.

Semantics and defaults are those of prometheus/prometheus, model/relabel/relabel.go, read 2026-11; patterns are RE2's
and match the whole value.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import re2

OPTIONS = re2.Options()
OPTIONS.log_errors = False
OPTIONS.dot_nl = True
ANYTHING = "(.*)"
# $1, ${1}, $name, ${name} and $$, as Go's Regexp.Expand reads them: the longest name wins.
REFERENCE = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)\})")
# Patterns are looked up for each series of a page; a file with more patterns than this is generated.
MAX_CACHED_PATTERNS = 4096


class RelabelAction(StrEnum):
    REPLACE = "replace"
    KEEP = "keep"
    DROP = "drop"
    KEEP_EQUAL = "keepequal"
    DROP_EQUAL = "dropequal"
    HASHMOD = "hashmod"
    LABEL_MAP = "labelmap"
    LABEL_DROP = "labeldrop"
    LABEL_KEEP = "labelkeep"
    LOWERCASE = "lowercase"
    UPPERCASE = "uppercase"


# The actions without a `target_label`.
NO_TARGET = frozenset({"keep", "drop", "labelmap", "labeldrop", "labelkeep"})


@dataclass(frozen=True, slots=True)
class RelabelRule:
    source_labels: tuple[str, ...] = ()
    separator: str = ";"
    regex: str = ANYTHING
    modulus: int = 0
    target_label: str = ""
    replacement: str = "$1"
    action: RelabelAction = RelabelAction.REPLACE

    def __post_init__(self) -> None:
        compile_pattern(self.regex)
        if self.action not in NO_TARGET and not self.target_label:
            raise ValueError(f"relabel action {self.action} needs a `target_label`")
        if self.action is RelabelAction.HASHMOD and self.modulus < 1:
            raise ValueError(f"relabel action hashmod needs a `modulus` of 1 or more, not {self.modulus}")


@functools.lru_cache(MAX_CACHED_PATTERNS)
def compile_pattern(text: str) -> Any:
    try:
        return re2.compile(text, OPTIONS)
    except re2.error as error:
        problem = error.args[0] if error.args else "not a regular expression"
        reason = problem.decode(errors="replace") if isinstance(problem, bytes) else str(problem)
        raise ValueError(f"`{text[:80]}` is not a regular expression: {reason}") from error


def relabel(rules: Sequence[RelabelRule], labels: Mapping[str, str]) -> dict[str, str] | None:
    """The label set after all rules, without empty values; None if a rule drops it."""
    changed = dict(labels)
    for rule in rules:
        if not ACTIONS[rule.action](rule, changed):
            return None
    return {name: value for name, value in changed.items() if value}


def _join_sources(rule: RelabelRule, labels: Mapping[str, str]) -> str:
    return rule.separator.join(labels.get(name, "") for name in rule.source_labels)


def _expand(template: str, match: Any) -> str:
    """Go's Expand: a group that does not exist or did not match is empty."""

    def group(reference: re.Match[str]) -> str:
        if reference[1]:
            return "$"
        name = reference[2] or reference[3]
        try:
            return match.group(int(name) if name.isdecimal() else name) or ""
        except (IndexError, KeyError, ValueError):
            return ""

    return REFERENCE.sub(group, template)


def _replace(rule: RelabelRule, labels: dict[str, str]) -> bool:
    match = compile_pattern(rule.regex).fullmatch(_join_sources(rule, labels))
    if match is not None and (target := _expand(rule.target_label, match)):
        if value := _expand(rule.replacement, match):
            labels[target] = value
        else:
            labels.pop(target, None)
    return True


def _matches(rule: RelabelRule, labels: dict[str, str]) -> bool:
    return compile_pattern(rule.regex).fullmatch(_join_sources(rule, labels)) is not None


def _hashmod(rule: RelabelRule, labels: dict[str, str]) -> bool:
    # The last eight bytes of MD5, as in Prometheus; it distributes targets and is not for security.
    digest = hashlib.md5(_join_sources(rule, labels).encode(), usedforsecurity=False).digest()
    labels[rule.target_label] = str(int.from_bytes(digest[8:], "big") % rule.modulus)
    return True


def _label_map(rule: RelabelRule, labels: dict[str, str]) -> bool:
    for name, value in list(labels.items()):
        match = compile_pattern(rule.regex).fullmatch(name)
        if match is not None:
            labels[_expand(rule.replacement, match)] = value
    return True


def _drop_names(rule: RelabelRule, labels: dict[str, str], *, matching: bool) -> bool:
    for name in [name for name in labels if (compile_pattern(rule.regex).fullmatch(name) is not None) is matching]:
        del labels[name]
    return True


def _set(rule: RelabelRule, labels: dict[str, str], value: str) -> bool:
    labels[rule.target_label] = value
    return True


ACTIONS: dict[RelabelAction, Callable[[RelabelRule, dict[str, str]], bool]] = {
    RelabelAction.REPLACE: _replace,
    RelabelAction.KEEP: _matches,
    RelabelAction.DROP: lambda rule, labels: not _matches(rule, labels),
    RelabelAction.KEEP_EQUAL: lambda rule, labels: labels.get(rule.target_label, "") == _join_sources(rule, labels),
    RelabelAction.DROP_EQUAL: lambda rule, labels: labels.get(rule.target_label, "") != _join_sources(rule, labels),
    RelabelAction.HASHMOD: _hashmod,
    RelabelAction.LABEL_MAP: _label_map,
    RelabelAction.LABEL_DROP: lambda rule, labels: _drop_names(rule, labels, matching=True),
    RelabelAction.LABEL_KEEP: lambda rule, labels: _drop_names(rule, labels, matching=False),
    RelabelAction.LOWERCASE: lambda rule, labels: _set(rule, labels, _join_sources(rule, labels).lower()),
    RelabelAction.UPPERCASE: lambda rule, labels: _set(rule, labels, _join_sources(rule, labels).upper()),
}
