"""A command of accounting, run in this process."""

from __future__ import annotations

from click.testing import CliRunner, Result


def run(command: object, *arguments: object) -> Result:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])  # type: ignore[arg-type]
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result
