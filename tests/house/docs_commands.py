"""The command lines of the documents: where they stand, and what may be done with them.

A fenced block of commands is run by `test_docs_commands`, in a folder with the files of docs_sample, unless the line
above it says otherwise:

    <!-- not run: needs a GPU -->      nobody runs it, and this is why
    <!-- run: hub -->                  it is run against a hub with a simulated fleet

A block is of commands when its language is sh, or when it has none and begins with a program's name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

PROGRAMS = frozenset(
    {"curl", "docker", "eval", "helm", "ibstat", "kubectl", "make", "openssl", "pipx", "podman", "promtool", "sacct"}
    | {"scontrol", "sudo", "systemctl", "uvx", "watchkeeper"}
)
# What a test may start on the machine of whoever runs it; a block with anything else must be marked.
HARMLESS = frozenset({"watchkeeper", "cat", "curl", "echo", "grep", "head", "mkdir"})
FENCE = re.compile(r"^(?P<mark>[^\n]*)\n```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- (?P<verb>not run|run): (?P<words>[^>]*\S) -->")
FIRST_WORD = re.compile(r"^(?:[A-Z_]+=\S+ )*([a-z_-]+)")


@dataclass(frozen=True, slots=True)
class Block:
    """Commands of one fence; `why_not` is empty where they are run, `needs_hub` says against what."""

    page: Path
    line: int
    commands: tuple[str, ...]
    why_not: str
    needs_hub: bool

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for fence in FENCE.finditer(text):
        if not _is_commands(fence["language"], fence["body"]):
            continue
        mark = MARK.fullmatch(fence["mark"].strip())
        verb, words = (mark["verb"], mark["words"]) if mark else ("run", "")
        line = text.count("\n", 0, fence.start("body")) + 1
        commands = tuple(logical_lines(fence["body"]))
        yield Block(page, line, commands, words if verb == "not run" else "", verb == "run" and words == "hub")


def _is_commands(language: str, body: str) -> bool:
    if language:
        return language == "sh"
    first = FIRST_WORD.match(body)
    return first is not None and first[1] in PROGRAMS


def logical_lines(body: str) -> Iterator[str]:
    """Lines that are run one by one: continued ones joined, empty ones and comments left out."""
    for line in body.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip()


def calls(command: str) -> Iterator[list[str]]:
    """The words of each program that a line of shell starts; a comment is left out."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|&;"):
            yield words
            words = []
        else:
            words.append(word)
    yield words


def programs(command: str) -> set[str]:
    return {words[0] for words in calls(command) if words}


def own_calls(command: str) -> Iterator[list[str]]:
    """What follows each `watchkeeper` of a line."""
    return (words[1:] for words in calls(command) if words and words[0] == "watchkeeper")
