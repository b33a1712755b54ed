"""`watchkeeper rules`: check rule files and run their tests, without a hub.

Imports happen inside the commands: reading rules needs the hub's packages, which a node does not have.
"""

from __future__ import annotations

from pathlib import Path

import click

EXISTING = click.Path(exists=True, path_type=Path)


@click.group("rules")
def command() -> None:
    """Check and test Prometheus rule files."""


@command.command("check")
@click.argument("files", nargs=-1, required=True, type=EXISTING)
def check(files: tuple[Path, ...]) -> None:
    """Read rule FILES and print every problem with its line; exit 1 if there is one."""
    from watchkeeper.rules import rulefile

    try:
        found = rulefile.load(files)
    except rulefile.RuleFileProblems as error:
        for problem in error.problems:
            click.echo(str(problem))
        count = len(error.problems)
        click.echo(f"{count} problem{'s' if count > 1 else ''} found", err=True)
        raise SystemExit(1) from error
    click.echo(f"{len(found.rules)} rules in {len(found.groups)} groups: no problem found")


@command.command("slo")
@click.argument("file", type=EXISTING)
def write_slo(file: Path) -> None:
    """Turn the objectives in FILE (see packs/slo.yaml) into a rule file, printed."""
    from watchkeeper.rules import slo

    click.echo(slo.render(slo.read(file.read_text(encoding="utf-8"), where=str(file)), source=file.name), nl=False)


@command.command("test")
@click.argument("files", nargs=-1, required=True, type=EXISTING)
def test(files: tuple[Path, ...]) -> None:
    """Run test FILES in promtool's format on our own engine; exit 1 if an expectation fails."""
    from watchkeeper.errors import WatchkeeperError
    from watchkeeper.rules import unit_tests

    failed = 0
    for path in files:
        try:
            failures = unit_tests.run(path)
        except WatchkeeperError as error:
            failures = [str(error)]
        click.echo(f"{path}: {'ok' if not failures else 'FAILED'}")
        for failure in failures:
            click.echo(f"  {failure}")
        failed += bool(failures)
    if failed:
        raise SystemExit(1)
