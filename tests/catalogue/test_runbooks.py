"""Every cause has a runbook with its four parts."""

from __future__ import annotations

from tests.support.paths import ROOT
from watchkeeper.catalogue import causes

RUNBOOKS = ROOT / "docs" / "runbooks"
PARTS = ("How it looks", "How to confirm", "How to fix", "How to prevent")


def test_every_cause_has_a_runbook_with_all_its_parts() -> None:
    for row in causes.all_causes():
        text = (RUNBOOKS / f"{row.runbook}.md").read_text()
        assert text.startswith(f"# {row.cause}\n")
        assert not [part for part in PARTS if f"## {part}\n" not in text], row.cause
