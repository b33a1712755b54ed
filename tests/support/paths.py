"""Where the house and the material beside it lie."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
# Recordings and corpora that are never committed; tests that read them are skipped where they are missing.
SHARED = ROOT.parent / "shared"
