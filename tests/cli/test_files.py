"""Files that commands are given to read or to write: what is not there is wrong use, what is there is not lost."""

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


def said(line: str, path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    with pytest.raises(SystemExit) as left:
        main.main([*line.split(), str(path)])
    return left.value.code, capsys.readouterr().err


@pytest.mark.parametrize("line", TO_READ)
def test_a_file_that_is_not_there_is_wrong_use(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, words = said(line, tmp_path / "nothing", capsys)
    assert (code, "Errno" in words) == (2, False)


@pytest.mark.parametrize("line", [line for line in TO_READ if line not in ("doctor", "rules check", "store restore")])
def test_a_folder_instead_of_a_file_is_wrong_use(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, words = said(line, tmp_path, capsys)
    assert (code, "Errno" in words) == (2, False)


@pytest.mark.parametrize("line", TO_WRITE)
def test_a_file_that_is_there_is_not_replaced_unasked(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evidence"
    path.write_text("of last night")
    code, words = said(line, path, capsys)
    assert (code, "exists; use --force to overwrite it" in words) == (2, True)
    assert path.read_text() == "of last night"


def test_what_is_no_plain_file_is_never_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    code, words = said("bundle --local --force -o", Path("/dev/null"), capsys)
    assert (code, "is not a regular file" in words) == (2, True)
