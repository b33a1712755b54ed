"""`watchkeeper render`: files for other people's systems, from the hub's own settings and packs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from watchkeeper.cli import options
from watchkeeper.config import loading
from watchkeeper.errors import StartRefused
from watchkeeper.kit import files as whole_files
from watchkeeper.render import targets, tree

# A larger tree is a slip: a home directory instead of a folder for rendered files.
MOST_FILES = 5_000
MARKS = {
    tree.FileStatus.NEW: "+",
    tree.FileStatus.CHANGED: "~",
    tree.FileStatus.UNCHANGED: "=",
    tree.FileStatus.REMOVED: "-",
    tree.FileStatus.EDITED: "!",
    tree.FileStatus.FOREIGN: "!",
}
WHY = {
    tree.FileStatus.EDITED: "was edited since it was rendered",
    tree.FileStatus.FOREIGN: "is there already and was not rendered",
    tree.FileStatus.REMOVED: "is no longer rendered",
}
EPILOG = "\b\nTargets:\n" + "\n".join(f"  {name:<13} {line}" for name, (_, line) in targets.TARGETS.items())


@click.command("render", epilog=EPILOG)
@click.argument("target", type=click.Choice(list(targets.TARGETS)), metavar="TARGET")
@click.argument("directory", required=False, metavar="[DIR]", type=click.Path(file_okay=False, path_type=Path))
@click.option("--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="The hub's settings.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if DIR is not what would be rendered.")
@click.option("--force", is_flag=True, help="Also overwrite files that a person edited or made.")
@click.option("--stdout", "to_stdout", is_flag=True, help="Print the files instead of writing them.")
@options.as_json
def command(
    target: str,
    directory: Path | None,
    config_file: Path | None,
    check: bool,
    force: bool,
    to_stdout: bool,
    as_json: bool,
) -> None:
    """Write what TARGET needs into DIR: the same settings give the same files.

    Each file says how it is used and carries a digest. A second run says what is new (+), changed (~), unchanged (=)
    or gone (-); a file that a person has edited is left alone (!) and the exit code is 1, unless --force is given.
    Files for which there is no more reason are removed if nobody edited them. Nothing is applied to any system.

    \b
    watchkeeper render prometheus /etc/prometheus --config hub.toml
    watchkeeper render alertmanager out --check
    """
    if (directory is None) != to_stdout:
        raise click.UsageError("give a DIR to write to, or --stdout")
    files = tree.with_stamps(targets.load(target)(loading.load(config_file)), target)
    if directory is None:
        _print_files(files)
        return
    steps = tree.plan(files, _existing(directory), target)
    refused = [step for step in steps if step.status.is_refused and not force]
    if not check:
        for step in steps:
            if step not in refused:
                _carry_out(directory, step)
    _report(steps, is_written=not check, refused=refused, as_json=as_json)
    if refused or (check and tree.has_changes(steps)):
        raise SystemExit(1)


def _existing(directory: Path) -> dict[str, str]:
    """The text of everything that lies in the directory, by path."""
    found: dict[str, str] = {}
    for path in sorted(directory.rglob("*")) if directory.is_dir() else []:
        if path.is_file():
            found[path.relative_to(directory).as_posix()] = path.read_bytes().decode("utf-8", "replace")
        if len(found) > MOST_FILES:
            raise StartRefused(
                f"holds more than {MOST_FILES:,} files, so it is not a directory for rendered ones",
                where=str(directory),
                remedy="Render into a folder of its own",
            )
    return found


def _carry_out(directory: Path, step: tree.PlanStep) -> None:
    path = directory / step.path
    try:
        if step.file is None:
            path.unlink()
        elif step.status is not tree.FileStatus.UNCHANGED:
            path.parent.mkdir(parents=True, exist_ok=True)
            whole_files.write_atomically(path, step.file.text.encode())
        if step.file is not None and step.file.is_executable:
            path.chmod(0o755)
    except OSError as error:
        raise StartRefused(f"cannot be written: {error.strerror}", where=str(path)) from error


def _print_files(files: Sequence[tree.RenderedFile]) -> None:
    for number, file in enumerate(files):
        if len(files) > 1:
            click.echo(("\n" if number else "") + f"==> {file.path} <==")
        click.echo(file.text, nl=False)


def _report(
    steps: Sequence[tree.PlanStep], *, is_written: bool, refused: Sequence[tree.PlanStep], as_json: bool
) -> None:
    if as_json:
        listed = [{"path": step.path, "standing": step.status, "refused": step in refused} for step in steps]
        options.print_json({"ok": not refused, "written": is_written, "files": listed})
        return
    for step in steps:
        why = WHY.get(step.status, "")
        click.echo(f"{MARKS[step.status]} {step.path}" + (f"  ({why})" if why else ""))
    counts = {standing: sum(step.status is standing for step in steps) for standing in tree.FileStatus}
    said = ", ".join(f"{count} {standing}" for standing, count in counts.items() if count)
    click.echo(said if is_written else f"{said}; nothing was written")
    if refused:
        click.echo("Files marked ! were left alone; look at them, then use --force", err=True)
