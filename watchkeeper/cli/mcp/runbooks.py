"""The runbooks of the documentation as texts: what `watchkeeper mcp` gives out.

A wheel has them in packs/runbooks (pyproject.toml puts them there); in a checkout they are where people edit them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import watchkeeper
from watchkeeper.catalogue import causes
from watchkeeper.errors import PackError

HERE = Path(watchkeeper.__file__).parent
PLACES = (HERE / "packs" / "runbooks", HERE.parent / "docs" / "runbooks")


@cache
def titles() -> dict[str, str]:
    """The name of every runbook, with what it is about; empty where none are installed."""
    rows = {row.runbook: row.why for row in causes.all_causes()}
    return {name: words for name, words in sorted(rows.items()) if _path(name) is not None}


def of_cause(cause: str) -> str:
    """The runbook of a cause; that of `unknown` for one that nobody has written about."""
    return causes.lookup(cause).runbook


def text(name: str) -> str:
    path = _path(name) if name in titles() else None
    if path is None:
        raise PackError(f"there is no runbook {name[:60]}", remedy="The causes of incidents have one each")
    return path.read_text(encoding="utf-8")


def _path(name: str) -> Path | None:
    return next((place / f"{name}.md" for place in PLACES if (place / f"{name}.md").is_file()), None)
