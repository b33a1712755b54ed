"""Whether the proofs of docs/reference/coverage.csv hold: names exist, pages and commands say what they should.

Commands run in this process, so that hundreds of them take seconds.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Iterator
from functools import cache

import yaml
from click.testing import CliRunner, Result

from tests.house import generate
from tests.house.coverage import Item
from tests.house.tree import PACKAGE
from tests.support.paths import ROOT
from watchkeeper.catalogue import causes, metrics, pack

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
CONSOLE_PATHS = re.compile(r'\bpath: "(/[a-z]*)')
FINDING = re.compile(r"^\d+\. .*\[(\w+),", re.MULTILINE)
SUCCESS_OR_VERDICT = (0, 1)


def problem_of(item: Item) -> str:
    """What is wrong with the proof, or an empty text."""
    if item.kind == "command":
        return _problem_of_output(_run(item.subject), item.shows)
    if item.kind == "doctor":
        # An id, not a word of the report: `cuda_oom` must be the cause of the first finding.
        output = _examined(item.subject.encode().decode("unicode_escape")).output
        findings = FINDING.findall(output)
        return "" if findings[:1] == [item.shows] else f"the doctor finds {findings}, not {item.shows}"
    if item.kind == "page":
        return _problem_of_page(item)
    if item.kind == "rule":
        return _problem_of_output(_checked(item.subject), item.shows)
    if item.subject not in NAMES[item.kind]():
        return f"there is no {item.proof}"
    return ""


def _problem_of_output(result: Result, shows: str) -> str:
    if result.exit_code not in SUCCESS_OR_VERDICT:
        return f"exit code {result.exit_code}: {result.output[-300:]}"
    return "" if _spaced(shows) in _spaced(result.output) else f"does not print: {shows}"


def _spaced(text: str) -> str:
    """Help texts and pages are wrapped."""
    return " ".join(text.split())


@cache
def _run(line: str) -> Result:
    return CliRunner().invoke(generate.commands()["watchkeeper"], shlex.split(line)[1:])


@cache
def _examined(text: str) -> Result:
    return CliRunner().invoke(generate.commands()["watchkeeper"], ["doctor", "-"], input=f"{text}\n")


def _checked(rule: str) -> Result:
    """What `rules check` says about `EXPR` or `EXPR for DURATION`."""
    expr, _, duration = rule.partition(" for ")
    alert = {"alert": "OfACourse", "expr": expr, "for": duration or "0s"}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        yaml.safe_dump({"groups": [{"name": "course", "rules": [alert]}]}, file)
        file.flush()
        return _run(f"watchkeeper rules check {file.name}")


def _problem_of_page(item: Item) -> str:
    name, _, anchor = item.subject.partition("#")
    if not (ROOT / name).is_file():
        return f"there is no page {name}"
    section = _sections(name).get(anchor)
    if section is None:
        return f"{name} has no heading {anchor}"
    return "" if _spaced(item.shows) in _spaced(section) else f"{item.subject} does not say: {item.shows}"


@cache
def _sections(name: str) -> dict[str, str]:
    """The text below each heading, by the anchor that the site gives it; the whole page by an empty one."""
    text = (ROOT / name).read_text()
    # A comment in a block of commands is no heading.
    heads = list(HEADING.finditer(FENCE.sub(lambda block: "`" * len(block[0]), text)))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    sections = {_anchor(head[1]): text[head.start() : end] for head, end in zip(heads, ends, strict=True)}
    return {**sections, "": text}


def _anchor(heading: str) -> str:
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


@cache
def _alerts() -> frozenset[str]:
    return frozenset(rule["alert"] for _, rule in generate.shipped_alerts())


@cache
def _causes() -> frozenset[str]:
    return frozenset(row.cause for row in causes.all_causes())


@cache
def _scenarios() -> frozenset[str]:
    return frozenset(path.stem for path in (PACKAGE / "packs" / "scenarios").glob("*.yaml"))


@cache
def _panels() -> frozenset[str]:
    """`GPU: Clocks` for each panel of each dashboard."""

    def panels() -> Iterator[str]:
        for path in (PACKAGE / "packs" / "dashboards").glob("*.yaml"):
            dashboard = yaml.safe_load(path.read_text())
            for row in dashboard["rows"]:
                yield from (f"{dashboard['title']}: {panel['title']}" for panel in row["panels"])

    return frozenset(panels())


@cache
def _metrics() -> frozenset[str]:
    """Every metric that the product exports, as its generated page lists them, reads or explains."""
    own = re.findall(r"^\| `(\w+)`", (generate.REFERENCE / "metrics.md").read_text(), re.MULTILINE)
    rows = (row for table in (metrics.FIELDS, metrics.GUIDE) for row in pack.load(table, dict))
    return frozenset({*own, *(row["name"] for row in rows)})


@cache
def _console_pages() -> frozenset[str]:
    return frozenset(CONSOLE_PATHS.findall((ROOT / "console" / "src" / "main.tsx").read_text()))


NAMES = {
    "alert": _alerts,
    "cause": _causes,
    "console": _console_pages,
    "metric": _metrics,
    "panel": _panels,
    "scenario": _scenarios,
}
KINDS = frozenset({*NAMES, "command", "doctor", "page", "rule"})
