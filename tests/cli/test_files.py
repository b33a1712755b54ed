"""Files that commands read or write: a missing file is a usage error, an existing file is not overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchkeeper.cli import main

TO_READ = (
    "doctor",
    "usage --jobs",
    "cost report --jobs",
    "cost report --prices",
    "capacity forecast --csv",
    "capacity whatif --gpus 8 --jobs",
    "capacity now --jobs x --nodes",
    "rules check",
    "rules test",
    "rules slo",
    "rules replay x --record",
    "profile classify",
    "profile --baseline",
    "explain pod x --file",
    "play",
    "act test",
    "migrate",
    "hub --config",
    "up --port 0 --tokens",
    "users list --file",
    "store restore",
)
TO_WRITE = ("record", "bundle --local -o", "cost report --format csv -o", "store export")


def run_failing(line: str, path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    with pytest.raises(SystemExit) as left:
        main.main([*line.split(), str(path)])
    return left.value.code, capsys.readouterr().err


@pytest.mark.parametrize("line", TO_READ)
def test_a_missing_file_is_a_usage_error(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, words = run_failing(line, tmp_path / "nothing", capsys)
    assert (code, "Errno" in words) == (2, False)


@pytest.mark.parametrize("line", [line for line in TO_READ if line not in ("doctor", "rules check", "store restore")])
def test_a_folder_instead_of_a_file_is_a_usage_error(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, words = run_failing(line, tmp_path, capsys)
    assert (code, "Errno" in words) == (2, False)


@pytest.mark.parametrize("line", TO_WRITE)
def test_an_existing_file_is_not_overwritten_without_force(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evidence"
    path.write_text("of last night")
    code, words = run_failing(line, path, capsys)
    assert (code, "exists; use --force to overwrite it" in words) == (2, True)
    assert path.read_text() == "of last night"


def test_a_file_that_is_not_regular_is_never_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    code, words = run_failing("bundle --local --force -o", Path("/dev/null"), capsys)
    assert (code, "is not a regular file" in words) == (2, True)
