"""`watchkeeper migrate`: what of somebody's exporter counters, rules and dashboards works here, and what changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from watchkeeper.cli import options
from watchkeeper.hub import rule_loops
from watchkeeper.kit import wire
from watchkeeper.migrate import files
from watchkeeper.migrate.verdict import ORDER, Compatibility, MigrationVerdict
from watchkeeper.rules import rulefile

WORDS = {
    Compatibility.WORKS: "works as it is",
    Compatibility.NEEDS: "works if the named exporter or label is there as well",
    Compatibility.CHANGES: "works after the change that is named",
    Compatibility.CANNOT: "cannot work here",
}


@click.command("migrate")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--all", "show_all", is_flag=True, help="Also list what works as it is.")
@options.as_json
def command(paths: Sequence[Path], show_all: bool, as_json: bool) -> None:
    """Read dcgm-exporter CSVs, Prometheus rule files and Grafana dashboards, and say what becomes of each.

    PATHS are files or folders; nothing is changed. Every field, rule and panel query gets one of four verdicts:
    works, needs (another exporter or label), changes (and how), cannot (and why). Exit code 1 if something
    changes or cannot work.

    \b
    watchkeeper migrate /etc/dcgm-exporter/default-counters.csv /etc/prometheus/rules dashboards/
    """
    found = files.judge_files(paths, rulefile.load_rules([rule_loops.SHIPPED_RULES]))
    counts = Counter(verdict.standing for verdict in found)
    if as_json:
        options.print_json(
            {
                "counts": {standing.value: counts[standing] for standing in ORDER},
                "verdicts": wire.to_plain(found),
            }
        )
    else:
        _print(found, show_all=show_all)
        for standing in ORDER:
            click.echo(f"{counts[standing]:>6}  {WORDS[standing]}")
    if not found:
        raise click.UsageError("nothing to read: name .csv, .yaml or .json files, or folders with some")
    raise SystemExit(1 if counts[Compatibility.CHANGES] or counts[Compatibility.CANNOT] else 0)


def _print(found: Sequence[MigrationVerdict], *, show_all: bool) -> None:
    file = None
    for verdict in found:
        if verdict.standing is Compatibility.WORKS and not verdict.why and not show_all:
            continue
        if verdict.file != file:
            file = verdict.file
            click.echo(click.style(file, bold=True))
        where = f"{verdict.where}: " if verdict.where else ""
        click.echo(f"  {verdict.standing:<8} {where}{' '.join(verdict.subject.split())[:120]}")
        for why in verdict.why:
            click.echo(f"           {why}")
    if file is not None:
        click.echo()
