"""What mkdocs asks while it builds docs/: which pages there are, and what becomes of links that leave the folder.

A page needs no entry anywhere: each folder is a section, its pages are sorted by title, and the first ones are named
here. A link into the source tree, which the site does not have, becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

# Folder, title, and the pages that come before the others.
SECTIONS = (
    ("start", "Start", ("no-gpu", "one-box", "kubernetes", "slurm", "existing-prometheus")),
    ("concepts", "Concepts", ("straight-line", "events-to-incidents")),
    ("howto", "How to", ("README", "install", "agent")),
    ("learn", "Learn", ("README", "layers")),
    ("reference", "Reference", ("cli", "settings")),
    ("runbooks", "Runbooks", ("README",)),
    ("decisions", "Decisions", ("README",)),
)
# [text](path), with or without an anchor, but not a picture, an address or an anchor of the same page
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    docs = Path(config["docs_dir"])
    config["nav"] = ["index.md", *({title: pages(docs / folder, first)} for folder, title, first in SECTIONS)]
    return config


def pages(folder: Path, first: tuple[str, ...]) -> list[str]:
    """The pages of a section as mkdocs names them, the first ones first."""
    paths = sorted(folder.glob("*.md"), key=lambda page: (_rank(page.stem, first), page.stem))
    return [f"{folder.name}/{page.name}" for page in paths]


def _rank(stem: str, first: tuple[str, ...]) -> int:
    return first.index(stem) if stem in first else len(first)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    folder = posixpath.dirname(page.file.src_uri)
    return LINK.sub(lambda match: _kept(match, folder), markdown)


def _kept(match: re.Match[str], folder: str) -> str:
    leaves = posixpath.normpath(posixpath.join(folder, match[2])).startswith("..")
    return match[1] if leaves else match[0]
