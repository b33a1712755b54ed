"""Reading rules once more while others are in force: all files together, or every problem with file and line.

`rule_loops` calls `read` at the start and at each reload, and `fingerprint` to see whether a file has changed.
A `Reload` is what people are told about it, over HTTP, in metrics and in the console.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from watchkeeper.kit import files
from watchkeeper.rules import rulefile, slo


@dataclass(frozen=True, slots=True)
class RuleSources:
    """Where rules come from. `slos` are objectives: `is_rendered` where their rules stand in `files` already."""

    files: tuple[Path, ...] = ()
    slos: Path | None = None
    is_rendered: bool = False


@dataclass(frozen=True, slots=True)
class LoadedRules:
    """What is in force: the rules, and the objectives that some of them were made from."""

    rules: rulefile.RuleSet = field(default_factory=rulefile.RuleSet)
    slos: tuple[slo.Slo, ...] = ()


@dataclass(frozen=True, slots=True)
class Reload:
    """How the last reading of the rule files went; with `problems`, the rules of `in_force_since` stay in force."""

    at: datetime
    in_force_since: datetime
    rules: int = 0
    groups: int = 0
    problems: tuple[str, ...] = ()

    @property
    def is_successful(self) -> bool:
        return not self.problems


def read_sources(sources: RuleSources) -> LoadedRules:
    """Everything that the sources say, or RuleFileProblems with every problem of every file."""
    texts = dict(rulefile.texts(sources.files))
    problems: list[rulefile.RuleFileProblems] = []
    objectives: list[slo.Slo] = []
    if sources.slos is not None:
        try:
            objectives = slo.load_slos(sources.slos)
        except rulefile.RuleFileProblems as error:
            problems.append(error)
        else:
            if not sources.is_rendered:
                texts[str(sources.slos)] = slo.render_rules(objectives, source=sources.slos.name)
    try:
        rules = rulefile.read_rules(texts)
    except rulefile.RuleFileProblems as error:
        problems.append(error)
    if problems:
        raise rulefile.RuleFileProblems(tuple(one for each in problems for one in each.problems))
    return LoadedRules(rules, tuple(objectives))


def file_stamps(sources: RuleSources) -> Mapping[str, files.FileStamp | None]:
    """The stamp of each file; None for one that is not there. Another answer means that something was written."""
    paths = [*rulefile.files(sources.files), *([] if sources.slos is None else [sources.slos])]
    return {str(path): files.read_stamp(path) for path in paths}
