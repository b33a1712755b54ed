"""The runbooks of the documentation as texts, for `watchkeeper mcp`.

A wheel has them in packs/runbooks (see pyproject.toml), a checkout in docs/runbooks.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import watchkeeper
from watchkeeper.catalogue import causes
from watchkeeper.errors import PackError

PACKAGE_FOLDER = Path(watchkeeper.__file__).parent
FOLDERS = (PACKAGE_FOLDER / "packs" / "runbooks", PACKAGE_FOLDER.parent / "docs" / "runbooks")


@cache
def titles() -> dict[str, str]:
    """Names of all runbooks with what each is about; empty if none are installed."""
    rows = {row.runbook: row.why for row in causes.all_causes()}
    return {name: title for name, title in sorted(rows.items()) if _find_path(name) is not None}


def find_runbook(cause: str) -> str:
    """The runbook of a cause; the runbook of `unknown` if the cause has none."""
    return causes.lookup(cause).runbook


def read_runbook(name: str) -> str:
    path = _find_path(name) if name in titles() else None
    if path is None:
        raise PackError(f"no runbook {name[:60]}", remedy="Use the cause of an incident")
    return path.read_text(encoding="utf-8")


def _find_path(name: str) -> Path | None:
    return next((folder / f"{name}.md" for folder in FOLDERS if (folder / f"{name}.md").is_file()), None)
