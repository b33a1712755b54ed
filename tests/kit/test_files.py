"""Files that are whole, and directories with one owner."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from watchkeeper.errors import StartRefused
from watchkeeper.kit import files


def claimed(path: Path) -> files.DataDirectory:
    directory = files.DataDirectory(path)
    directory.claim()
    return directory


def test_a_replaced_file_with_equal_time_and_size_has_another_stamp(tmp_path: Path) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    assert files.read_stamp(path) is None
    for file in (path, other):
        file.write_text("same size")
        os.utime(file, ns=(1, 1))
    before = files.read_stamp(path)
    assert before == files.read_stamp(path)
    other.replace(path)
    assert files.read_stamp(path) != before


def test_a_new_directory_is_made_and_can_be_claimed_again_after_release(tmp_path: Path) -> None:
    claimed(tmp_path / "new" / "data").release()
    claimed(tmp_path / "new" / "data").release()


def test_a_directory_in_use_is_refused_until_it_is_released(tmp_path: Path) -> None:
    first = claimed(tmp_path)
    with pytest.raises(StartRefused, match="another Watchkeeper is using this data directory"):
        claimed(tmp_path)
    first.release()
    claimed(tmp_path).release()


def test_a_locked_folder_is_refused_until_its_lock_is_closed(tmp_path: Path) -> None:
    lock = files.lock_folder(tmp_path / "samples")
    with pytest.raises(StartRefused, match="another hub stores its samples in this folder"):
        files.lock_folder(tmp_path / "samples")
    os.close(lock)
    os.close(files.lock_folder(tmp_path / "samples"))


def test_a_directory_with_files_of_another_program_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear reader")
    with pytest.raises(
        StartRefused, match=r"files of another program \(thesis.tex\).*Choose an empty or new directory"
    ):
        claimed(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(StartRefused, match="cannot be used: File exists"):
        claimed(tmp_path / "data")


def test_a_directory_without_the_mark_of_a_killed_start_can_be_claimed(tmp_path: Path) -> None:
    # It ends as under kill -9 when it is about to write.
    killed = """
import os, pathlib, sys
from watchkeeper.kit import files
os.write = os.fsync = lambda *_: os._exit(0)
files.DataDirectory(pathlib.Path(sys.argv[1])).claim()
raise SystemExit("it was to be killed")
"""
    subprocess.run([sys.executable, "-c", killed, str(tmp_path)], check=True)
    assert list(tmp_path.iterdir()) != []
    claimed(tmp_path).release()
    assert (tmp_path / files.OWNER_MARK).read_text() == f"format {files.FORMAT}\n"


def test_of_many_processes_that_start_together_one_claims_the_directory(tmp_path: Path) -> None:
    for number in range(20):
        directories = [files.DataDirectory(tmp_path / str(number)) for _ in range(8)]
        together, owners = threading.Barrier(len(directories)), list[files.DataDirectory]()

        def start(
            directory: files.DataDirectory, together: threading.Barrier, owners: list[files.DataDirectory]
        ) -> None:
            together.wait()
            with contextlib.suppress(StartRefused):
                directory.claim()
                owners.append(directory)

        threads = [threading.Thread(target=start, args=(directory, together, owners)) for directory in directories]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(owners) == 1
        owners[0].release()


def test_a_failed_write_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "name").mkdir()
    with pytest.raises(IsADirectoryError):
        files.write_atomically(tmp_path / "name", b"content")
    assert [entry.name for entry in tmp_path.iterdir()] == ["name"]


def test_releasing_twice_is_harmless(tmp_path: Path) -> None:
    directory = claimed(tmp_path)
    directory.release()
    directory.release()


def test_a_file_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    files.write_atomically(path, b"old")
    files.write_atomically(path, b"new", mode=0o600)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokens"]


def test_a_directory_of_a_later_format_is_refused_with_both_numbers_and_left_alone(tmp_path: Path) -> None:
    mark = tmp_path / files.OWNER_MARK
    mark.write_text("format 7\n")
    with pytest.raises(StartRefused, match="has format 7, this Watchkeeper supports up to 1"):
        files.DataDirectory(tmp_path).claim()
    assert mark.read_text() == "format 7\n"


def test_a_secret_is_not_written_into_an_existing_file(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.write_text("open to all")
    scratch = tmp_path / f".key.{os.getpid()}.{threading.get_native_id()}"
    scratch.symlink_to(trap)
    files.write_atomically(tmp_path / "key", b"secret", mode=0o600)
    assert (trap.read_text(), (tmp_path / "key").read_text()) == ("open to all", "secret")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "key").is_symlink()
