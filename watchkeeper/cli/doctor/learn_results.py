"""A learner's results: one small JSON file of the user, with the last answer to each question and the passed weeks."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from watchkeeper.errors import InputError, error_reason

PHASES = ("before", "after")


def default_path() -> Path:
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "watchkeeper" / "learn.json"


@dataclass(slots=True)
class LearnResults:
    """By phase whether each question was answered right, and by week when its check was passed."""

    path: Path
    before: dict[str, bool] = field(default_factory=dict)
    after: dict[str, bool] = field(default_factory=dict)
    weeks: dict[str, str] = field(default_factory=dict)

    def of(self, phase: str) -> dict[str, bool]:
        return self.before if phase == "before" else self.after

    def save(self) -> None:
        content = {"before": self.before, "after": self.after, "weeks": self.weeks}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"the results were not saved: {error_reason(error)}", where=str(self.path)) from error


def load(path: Path) -> LearnResults:
    """The results of this file; without a file there are none."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        return LearnResults(path, *(dict(plain[name]) for name in (*PHASES, "weeks")))
    except FileNotFoundError:
        return LearnResults(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "Move the file away to begin again"
        raise InputError(f"not a file of results: {error_reason(error)}", where=str(path), remedy=remedy) from error
