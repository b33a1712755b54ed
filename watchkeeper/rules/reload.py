"""Load and reload rules: all files together, or every problem with file and line.

The API, metrics and the console show the result as a `Reload`.
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
    """Where rules come from; `slos` is a file of objectives, and `is_rendered` if `files` already has their rules."""

    files: tuple[Path, ...] = ()
    slos: Path | None = None
    is_rendered: bool = False


@dataclass(frozen=True, slots=True)
class LoadedRules:
    rules: rulefile.RuleSet = field(default_factory=rulefile.RuleSet)
    slos: tuple[slo.Slo, ...] = ()


@dataclass(frozen=True, slots=True)
class Reload:
    """The outcome of the last reload; with `problems`, the rules of `in_force_since` stay active."""

    at: datetime
    in_force_since: datetime
    rules: int = 0
    groups: int = 0
    problems: tuple[str, ...] = ()

    @property
    def is_successful(self) -> bool:
        return not self.problems


def read_sources(sources: RuleSources) -> LoadedRules:
    """Read all rules and SLOs; RuleFileProblems with every problem of every file."""
    texts = dict(rulefile.read_texts(sources.files))
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
        raise rulefile.RuleFileProblems(tuple(problem for error in problems for problem in error.problems))
    return LoadedRules(rules, tuple(objectives))


def file_stamps(sources: RuleSources) -> Mapping[str, files.FileStamp | None]:
    """The stamp of each file, None if it is missing; a different result means that a file changed."""
    paths = [*rulefile.list_files(sources.files), *([] if sources.slos is None else [sources.slos])]
    return {str(path): files.read_stamp(path) for path in paths}
