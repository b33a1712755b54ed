"""The render targets, their files, and the plan to write them into a directory.

`plan` decides for each file: write, keep, remove, or refuse because a person edited it; `cli.hub.render` executes it.
A rendered file has a stamp: a comment line with the target and a digest of the rest, which detects edits; files without
comments, such as JSON, have their digests in a list in the format of sha256sum.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

from watchkeeper.config import settings as config

# Name, module and one line for --help; a module is imported when its target is rendered.
TARGETS: dict[str, tuple[str, str]] = {
    "prometheus": ("watchkeeper.render.prometheus", "prometheus.yml and every rule that the hub evaluates"),
    "alertmanager": ("watchkeeper.render.alertmanager", "routes, receivers and inhibition from [notify] and the packs"),
    "grafana": ("watchkeeper.render.grafana", "dashboards and their provisioning"),
    "kubernetes": ("watchkeeper.render.kubernetes", "agent and hub as a kustomization"),
    "helm": ("watchkeeper.render.helm", "agent and hub as a Helm chart"),
    "keda": ("watchkeeper.render.keda", "ScaledObjects for inference"),
    "operator": ("watchkeeper.render.operator", "values for the GPU Operator and kube-prometheus-stack"),
    "systemd": ("watchkeeper.render.systemd", "units of agent and hub, and a timer for diagnostics"),
    "slurm": ("watchkeeper.render.slurm", "prolog, epilog, HealthCheckProgram, fragments of slurm.conf and gres.conf"),
    "compose": ("watchkeeper.render.compose", "Prometheus, Alertmanager, Grafana, agent and hub in containers"),
    "mig": ("watchkeeper.render.mig", "checked MIG layouts for mig-parted, and a unit that applies one at boot"),
}
# Formats without comments.
WITHOUT_COMMENTS = frozenset({".json", ".md", ".txt", ".tpl"})
STAMP = re.compile(
    r"^# Rendered by `watchkeeper render (?P<target>[a-z]+)`, sha256:(?P<digest>[0-9a-f]{16})\b.*\n", re.M
)
LIST_LINE = re.compile(r"^(?P<digest>[0-9a-f]{64})  (?P<path>.+)$", re.M)
# The stamp is at the top; only this many characters are searched.
TOP = 1000


def list_path(target: str) -> str:
    """The digest list of one target; several targets may share a directory."""
    return f".rendered-{target}.sha256"


@dataclass(frozen=True, slots=True)
class RenderedFile:
    path: str
    text: str
    is_executable: bool = False


# A target's `files`: the same settings give the same bytes.
Target = Callable[[config.Settings], list[RenderedFile]]


def load(name: str) -> Target:
    files: Target = importlib.import_module(TARGETS[name][0]).files
    return files


class FileStatus(StrEnum):
    NEW = "new"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    # Rendered earlier, no longer part of the target, and not edited.
    REMOVED = "removed"
    EDITED = "edited"
    FOREIGN = "foreign"

    @property
    def is_refused(self) -> bool:
        """Whether writing would lose a person's changes."""
        return self in (FileStatus.EDITED, FileStatus.FOREIGN)


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One path of a plan; `file` is None if nothing is written."""

    path: str
    status: FileStatus
    file: RenderedFile | None = None


def with_stamps(files: Sequence[RenderedFile], target: str) -> list[RenderedFile]:
    """Return the files sorted by path, each with its stamp or a line in the digest list."""
    stamped = [_with_stamp(file, target) if _has_comments(file.path) else file for file in files]
    listed = sorted(file.path for file in files if not _has_comments(file.path))
    texts = {file.path: file.text for file in files}
    if listed:
        lines = "".join(f"{_sha256(texts[path])}  {path}\n" for path in listed)
        stamped.append(_with_stamp(RenderedFile(list_path(target), lines), target))
    return sorted(stamped, key=lambda file: file.path)


def plan(files: Sequence[RenderedFile], existing: Mapping[str, str], target: str) -> list[PlanStep]:
    """Plan each path; `files` are stamped, `existing` has the texts of the directory by path."""
    digests = {match["path"]: match["digest"] for match in LIST_LINE.finditer(existing.get(list_path(target), ""))}
    steps = [PlanStep(file.path, _file_status(file, existing.get(file.path), digests), file) for file in files]
    for path in sorted(existing.keys() - {file.path for file in files}):
        stamp = _stamp(path, existing[path])
        if path in digests or (stamp is not None and stamp["target"] == target):
            is_edited = not _is_untouched(path, existing[path], digests)
            steps.append(PlanStep(path, FileStatus.EDITED if is_edited else FileStatus.REMOVED))
    return steps


def in_folder(files: Sequence[RenderedFile], folder: str) -> Iterator[RenderedFile]:
    """Move the files of one target into a folder of another."""
    for file in files:
        yield RenderedFile(f"{folder}/{file.path}", file.text, file.is_executable)


def _file_status(file: RenderedFile, text: str | None, digests: Mapping[str, str]) -> FileStatus:
    if text is None:
        return FileStatus.NEW
    if text == file.text:
        return FileStatus.UNCHANGED
    if _is_untouched(file.path, text, digests):
        return FileStatus.CHANGED
    is_ours = _stamp(file.path, text) is not None if _has_comments(file.path) else file.path in digests
    return FileStatus.EDITED if is_ours else FileStatus.FOREIGN


def _is_untouched(path: str, text: str, digests: Mapping[str, str]) -> bool:
    if not _has_comments(path):
        return digests.get(path) == _sha256(text)
    stamp = _stamp(path, text)
    return stamp is not None and _sha256(text.replace(stamp[0], "", 1)).startswith(stamp["digest"])


def _stamp(path: str, text: str) -> re.Match[str] | None:
    return STAMP.search(text[:TOP]) if _has_comments(path) else None


def _has_comments(path: str) -> bool:
    return PurePosixPath(path).suffix not in WITHOUT_COMMENTS


def _with_stamp(file: RenderedFile, target: str) -> RenderedFile:
    """Add the stamp on the first line, or on the second after a `#!` line."""
    stamp = f"# Rendered by `watchkeeper render {target}`, sha256:{_sha256(file.text)[:16]}; an edited file is kept.\n"
    first, end, rest = file.text.partition("\n")
    text = f"{first}{end}{stamp}{rest}" if first.startswith("#!") else stamp + file.text
    return RenderedFile(file.path, text, file.is_executable)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
