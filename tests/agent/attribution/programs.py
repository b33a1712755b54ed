"""Builds the files of a process in /proc."""

from __future__ import annotations

from pathlib import Path


def make_program(proc: Path, pid: int, *, cgroup: str = "0::/\n", environ: str = "", **more: str) -> None:
    folder = proc / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True)
    name = more.get("name", "python3")
    files = {"status": f"Name:\t{name}\nUid:\t1000\t1000\t1000\t1000\n", "comm": f"{name}\n", "cgroup": cgroup}
    files |= {"environ": environ.replace(" ", "\0"), "cmdline": more.get("cmdline", f"{name}\0"), **more}
    for file in ("status", "comm", "cgroup", "environ", "cmdline"):
        (folder / file).write_text(files[file])
    (folder / "task" / str(pid) / "children").write_text(more.get("children", ""))
