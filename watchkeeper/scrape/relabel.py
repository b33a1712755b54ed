"""Prometheus' relabelling: rules that change, keep or drop a label set.

`jobs` applies a job's rules to targets, `scrape` to the series of their pages. Semantics and defaults are
those of prometheus/prometheus, model/relabel/relabel.go, read 2026-11; patterns are RE2's and match the
whole value.
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
# $1, ${1}, $name, ${name} and $$, as Go's Regexp.Expand reads them: the longest name counts.
REFERENCE = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)\})")
# One line of work for each series of a page; more patterns than this in one file are generated.
REMEMBERED_PATTERNS = 4096


class Action(StrEnum):
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


NEEDS_TARGET = frozenset(
    {Action.REPLACE, Action.HASHMOD, Action.LOWERCASE, Action.UPPERCASE, Action.KEEP_EQUAL, Action.DROP_EQUAL}
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of relabel_configs; ValueError says what is wrong with it."""

    source_labels: tuple[str, ...] = ()
    separator: str = ";"
    regex: str = ANYTHING
    modulus: int = 0
    target_label: str = ""
    replacement: str = "$1"
    action: Action = Action.REPLACE

    def __post_init__(self) -> None:
        pattern(self.regex)
        if self.action in NEEDS_TARGET and not self.target_label:
            raise ValueError(f"relabel action {self.action} needs a `target_label`")
        if self.action is Action.HASHMOD and self.modulus < 1:
            raise ValueError(f"relabel action hashmod needs a `modulus` of 1 or more, not {self.modulus}")


@functools.lru_cache(REMEMBERED_PATTERNS)
def pattern(text: str) -> Any:
    try:
        return re2.compile(text, OPTIONS)
    except re2.error as error:
        problem = error.args[0] if error.args else "not a regular expression"
        words = problem.decode(errors="replace") if isinstance(problem, bytes) else str(problem)
        raise ValueError(f"`{text[:80]}` is not a regular expression: {words}") from error


def apply(rules: Sequence[Rule], labels: Mapping[str, str]) -> dict[str, str] | None:
    """The label set after all rules, without empty values; None if a rule drops it."""
    changed = dict(labels)
    for rule in rules:
        if not ACTIONS[rule.action](rule, changed):
            return None
    return {name: value for name, value in changed.items() if value}


def _joined(rule: Rule, labels: Mapping[str, str]) -> str:
    return rule.separator.join(labels.get(name, "") for name in rule.source_labels)


def _expand(template: str, match: Any) -> str:
    """Go's Expand: a group that does not exist or did not take part is empty."""

    def group(found: re.Match[str]) -> str:
        if found[1]:
            return "$"
        name = found[2] or found[3]
        try:
            return match.group(int(name) if name.isdecimal() else name) or ""
        except (IndexError, KeyError, ValueError):
            return ""

    return REFERENCE.sub(group, template)


def _replace(rule: Rule, labels: dict[str, str]) -> bool:
    match = pattern(rule.regex).fullmatch(_joined(rule, labels))
    if match is None:
        return True
    target = _expand(rule.target_label, match)
    if not target:
        return True
    value = _expand(rule.replacement, match)
    if value:
        labels[target] = value
    else:
        labels.pop(target, None)
    return True


def _matches(rule: Rule, labels: dict[str, str]) -> bool:
    return pattern(rule.regex).fullmatch(_joined(rule, labels)) is not None


def _hashmod(rule: Rule, labels: dict[str, str]) -> bool:
    # The last eight bytes of MD5, as Prometheus does; it spreads targets and guards nothing.
    digest = hashlib.md5(_joined(rule, labels).encode(), usedforsecurity=False).digest()
    labels[rule.target_label] = str(int.from_bytes(digest[8:], "big") % rule.modulus)
    return True


def _label_map(rule: Rule, labels: dict[str, str]) -> bool:
    for name, value in list(labels.items()):
        match = pattern(rule.regex).fullmatch(name)
        if match is not None:
            labels[_expand(rule.replacement, match)] = value
    return True


def _drop_names(rule: Rule, labels: dict[str, str], *, matching: bool) -> bool:
    for name in [name for name in labels if (pattern(rule.regex).fullmatch(name) is not None) is matching]:
        del labels[name]
    return True


def _set(rule: Rule, labels: dict[str, str], value: str) -> bool:
    labels[rule.target_label] = value
    return True


ACTIONS: dict[Action, Callable[[Rule, dict[str, str]], bool]] = {
    Action.REPLACE: _replace,
    Action.KEEP: _matches,
    Action.DROP: lambda rule, labels: not _matches(rule, labels),
    Action.KEEP_EQUAL: lambda rule, labels: labels.get(rule.target_label, "") == _joined(rule, labels),
    Action.DROP_EQUAL: lambda rule, labels: labels.get(rule.target_label, "") != _joined(rule, labels),
    Action.HASHMOD: _hashmod,
    Action.LABEL_MAP: _label_map,
    Action.LABEL_DROP: lambda rule, labels: _drop_names(rule, labels, matching=True),
    Action.LABEL_KEEP: lambda rule, labels: _drop_names(rule, labels, matching=False),
    Action.LOWERCASE: lambda rule, labels: _set(rule, labels, _joined(rule, labels).lower()),
    Action.UPPERCASE: lambda rule, labels: _set(rule, labels, _joined(rule, labels).upper()),
}
