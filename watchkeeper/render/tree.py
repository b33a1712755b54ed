"""The files of a render target, and the plan to write them into a directory.

Every target is one function of the type `Target`. `plan` compares its files with those in the directory and decides for
each: write, keep, remove, or refuse because a person edited it. `cli.hub.render` prints and executes the plan. A
rendered file has a stamp: a comment line with the target and a digest of the rest, which detects edits. Files without
comments, such as JSON, have their digests in a list in the format of sha256sum.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

from watchkeeper.config import settings as config

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
    """One file, with its path below the output directory."""

    path: str
    text: str
    is_executable: bool = False


# A target's `files`: the same settings give the same bytes.
Target = Callable[[config.Settings], list[RenderedFile]]


class FileStatus(StrEnum):
    """The status of one path."""

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
    rendered_paths = {file.path for file in files}
    stale = sorted(
        path for path in existing if path not in rendered_paths and _is_of(path, existing[path], target, digests)
    )
    return steps + [PlanStep(path, _stale_status(path, existing[path], digests)) for path in stale]


def has_changes(steps: Sequence[PlanStep]) -> bool:
    return any(step.status is not FileStatus.UNCHANGED for step in steps)


def in_folder(files: Sequence[RenderedFile], folder: str) -> Iterator[RenderedFile]:
    """Move the files of one target into a folder of another."""
    for file in files:
        yield RenderedFile(f"{folder}/{file.path}", file.text, file.is_executable)


def _file_status(file: RenderedFile, text: str | None, digests: Mapping[str, str]) -> FileStatus:
    if text is None:
        return FileStatus.NEW
    if text == file.text:
        return FileStatus.UNCHANGED
    return FileStatus.CHANGED if _is_untouched(file.path, text, digests) else _edited_status(file.path, text, digests)


def _stale_status(path: str, text: str, digests: Mapping[str, str]) -> FileStatus:
    return FileStatus.REMOVED if _is_untouched(path, text, digests) else FileStatus.EDITED


def _is_untouched(path: str, text: str, digests: Mapping[str, str]) -> bool:
    if not _has_comments(path):
        return digests.get(path) == _sha256(text)
    match = STAMP.search(text[:TOP])
    return match is not None and _sha256(text.replace(match[0], "", 1)).startswith(match["digest"])


def _edited_status(path: str, text: str, digests: Mapping[str, str]) -> FileStatus:
    is_ours = path in digests if not _has_comments(path) else STAMP.search(text[:TOP]) is not None
    return FileStatus.EDITED if is_ours else FileStatus.FOREIGN


def _is_of(path: str, text: str, target: str, digests: Mapping[str, str]) -> bool:
    match = STAMP.search(text[:TOP]) if _has_comments(path) else None
    return path in digests or (match is not None and match["target"] == target)


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
