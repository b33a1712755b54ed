"""`watchkeeper render`: write files for other systems from the hub's settings and packs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from watchkeeper.cli import options
from watchkeeper.config import loading
from watchkeeper.errors import StartRefused
from watchkeeper.kit import files as whole_files
from watchkeeper.render import tree

# A larger directory is a mistake, for example a home directory.
MAX_FILES = 5_000
# The mark of each status, and what it means.
STATUS_MARKS = {
    tree.FileStatus.NEW: ("+", ""),
    tree.FileStatus.CHANGED: ("~", ""),
    tree.FileStatus.UNCHANGED: ("=", ""),
    tree.FileStatus.REMOVED: ("-", "no longer rendered"),
    tree.FileStatus.EDITED: ("!", "edited since it was rendered"),
    tree.FileStatus.FOREIGN: ("!", "exists and was not rendered"),
}
EPILOG = "\b\nTargets:\n" + "\n".join(f"  {name:<13} {line}" for name, (_, line) in tree.TARGETS.items())


@click.command("render", epilog=EPILOG)
@click.argument("target", type=click.Choice(list(tree.TARGETS)), metavar="TARGET")
@click.argument("directory", required=False, metavar="[DIR]", type=click.Path(file_okay=False, path_type=Path))
@options.hub_config
@click.option("--check", is_flag=True, help="Write nothing; exit code 1 if files in DIR differ from the settings.")
@click.option("--force", is_flag=True, help="Overwrite files that a person edited or created.")
@click.option("--stdout", "to_stdout", is_flag=True, help="Print the files instead of writing them.")
@options.as_json
def command(target: str, directory: Path | None, check: bool, force: bool, as_json: bool, **params: Any) -> None:
    """Write the configuration files of TARGET into DIR; the same settings give the same files.

    Each file explains its use and has a digest. Output marks new (+), changed (~), unchanged (=) and removed (-) files.
    A file that a person edited (!) is kept, with exit code 1, unless --force is given. A file that is no longer
    rendered is removed if it was not edited. Nothing is applied to any system.

    \b
    watchkeeper render prometheus /etc/prometheus --config hub.toml
    watchkeeper render alertmanager out --check
    """
    if (directory is None) != params["to_stdout"]:
        raise click.UsageError("give either DIR or --stdout")
    files = tree.with_stamps(tree.load(target)(loading.load(params["config_file"])), target)
    if directory is None:
        for number, file in enumerate(files):
            title = f"==> {file.path} <==\n" if len(files) > 1 else ""
            click.echo(("\n" if number else "") + title + file.text, nl=False)
        return
    steps = tree.plan(files, _read_directory(directory), target)
    refused = [step for step in steps if step.status.is_refused and not force]
    for step in steps if not check else ():
        if step not in refused:
            _apply_step(directory, step)
    _print_report(steps, is_written=not check, refused=refused, as_json=as_json)
    if refused or (check and any(step.status is not tree.FileStatus.UNCHANGED for step in steps)):
        raise SystemExit(1)


def _read_directory(directory: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    for path in sorted(directory.rglob("*")) if directory.is_dir() else []:
        if path.is_file():
            texts[path.relative_to(directory).as_posix()] = path.read_bytes().decode("utf-8", "replace")
        if len(texts) > MAX_FILES:
            problem = f"has more than {MAX_FILES:,} files, so it is not a directory for rendered files"
            raise StartRefused(problem, where=str(directory), remedy="Render into a separate directory")
    return texts


def _apply_step(directory: Path, step: tree.PlanStep) -> None:
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


def _print_report(
    steps: Sequence[tree.PlanStep], *, is_written: bool, refused: Sequence[tree.PlanStep], as_json: bool
) -> None:
    rows = [{"path": step.path, "standing": step.status, "refused": step in refused} for step in steps]
    lines = []
    for step in steps:
        mark, reason = STATUS_MARKS[step.status]
        lines.append(f"{mark} {step.path}" + (f"  ({reason})" if reason else ""))
    counts = {status: sum(step.status is status for step in steps) for status in tree.FileStatus}
    summary = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    lines.append(summary if is_written else f"{summary}; nothing was written")
    options.print_result({"ok": not refused, "written": is_written, "files": rows}, lines, as_json=as_json)
    if refused and not as_json:
        click.echo("Files marked ! were not changed. Review them, then use --force to overwrite them", err=True)
