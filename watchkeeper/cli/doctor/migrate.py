"""`watchkeeper migrate`: check which exporter counters, rules and dashboards work with Watchkeeper or must change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import click

from watchkeeper.cli import options
from watchkeeper.hub import rule_loops
from watchkeeper.kit import wire
from watchkeeper.migrate import files
from watchkeeper.migrate.expression import ORDER, Compatibility
from watchkeeper.rules import rulefile

VERDICT_TEXTS = {
    Compatibility.WORKS: "works unchanged",
    Compatibility.NEEDS: "works if the named exporter or label is present",
    Compatibility.CHANGES: "works after the named change",
    Compatibility.CANNOT: "cannot work with Watchkeeper",
}


@click.command("migrate")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--all", "show_all", is_flag=True, help="Also list what works unchanged.")
@options.as_json
def command(paths: Sequence[Path], show_all: bool, as_json: bool) -> None:
    """Check which dcgm-exporter CSVs, Prometheus rules and Grafana dashboards work with Watchkeeper.

    PATHS are files or folders; nothing is changed. Every field, rule and panel query gets a verdict: works, needs
    (another exporter or label), changes (and how), cannot (and why). Exit code 1 if something must change or cannot
    work.

    \b
    watchkeeper migrate /etc/dcgm-exporter/default-counters.csv /etc/prometheus/rules dashboards/
    """
    verdicts = files.judge_files(paths, rulefile.load_rules([rule_loops.SHIPPED_RULES]))
    counts = Counter(verdict.compatibility for verdict in verdicts)
    counts_json = {compatibility.value: counts[compatibility] for compatibility in ORDER}
    works = Compatibility.WORKS
    shown = [verdict for verdict in verdicts if show_all or verdict.why or verdict.compatibility is not works]
    lines = _verdict_lines(shown)
    lines += [f"{counts[compatibility]:>6}  {text}" for compatibility, text in VERDICT_TEXTS.items()]
    options.print_result({"counts": counts_json, "verdicts": wire.to_plain(verdicts)}, lines, as_json=as_json)
    if not verdicts:
        raise click.UsageError("nothing to read: give .csv, .yaml or .json files, or folders that contain them")
    raise SystemExit(1 if counts[Compatibility.CHANGES] or counts[Compatibility.CANNOT] else 0)


def _verdict_lines(verdicts: Sequence[files.MigrationVerdict]) -> list[str]:
    lines: list[str] = []
    for file, group in groupby(verdicts, key=attrgetter("file")):
        lines.append(click.style(file, bold=True))
        for verdict in group:
            place = f"{verdict.where}: " if verdict.where else ""
            lines.append(f"  {verdict.compatibility:<8} {place}{' '.join(verdict.subject.split())[:120]}")
            lines += [f"           {why}" for why in verdict.why]
    return [*lines, ""] if lines else lines
