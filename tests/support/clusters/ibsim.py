"""A simulated InfiniBand fabric: a netlist written in code, ibsim that plays it, and OpenSM that brings it up.

The programs under test reach it through libumad2sim, preloaded into them by `Fabric.environment`. Each fabric has a
socket of its own, so that several can run beside one another.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests import servers
from tests.support.waiting import PROGRAM_SECONDS, until

READY_SECONDS = 60.0
# Where Debian and Fedora keep the library that stands in for libibumad.
SIMULATED_UMAD = (
    "/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so",
    "/usr/lib/aarch64-linux-gnu/umad2sim/libumad2sim.so",
    "/usr/lib64/umad2sim/libumad2sim.so",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """A fabric with rails: host port r of every node is on a leaf of rail r; every leaf has links to every spine."""

    nodes: int = 4
    rails: int = 2
    nodes_per_leaf: int = 4
    spines: int = 2
    links_per_spine: int = 1
    # The host port whose link has trained with one lane of four.
    slow_host: str = ""

    @property
    def groups(self) -> int:
        return -(-self.nodes // self.nodes_per_leaf)

    @property
    def leaf_ports(self) -> int:
        return self.nodes_per_leaf + self.spines * self.links_per_spine

    def host_id(self, node: int, rail: int) -> str:
        # ibsim gives port 1 the GUID after the node's own, so GUIDs stand 16 apart.
        return f"H-b8cef603{node:06x}{rail:01x}0"

    def leaf_id(self, group: int, rail: int) -> str:
        return f"S-b8cef6aa{group:06x}{rail:01x}0"

    def spine_id(self, spine: int) -> str:
        return f"S-b8cef6bb{spine:06x}00"

    def leaf_name(self, group: int, rail: int) -> str:
        return f"leaf-{group + 1}-{rail}"

    def netlist(self) -> str:
        return "\n".join([*self._leaves(), *self._spines(), *self._hosts()])

    def _leaves(self) -> Iterator[str]:
        for group in range(self.groups):
            for rail in range(self.rails):
                own = self.leaf_id(group, rail)
                yield f"switchguid=0x{own[2:]}({own[2:]})"
                yield f'Switch\t{self.leaf_ports} "{own}"\t\t# "{self.leaf_name(group, rail)}" base port 0 lid 0 lmc 0'
                for at in range(self.nodes_per_leaf):
                    node = group * self.nodes_per_leaf + at
                    if node < self.nodes:
                        name, rate = f"gpu-node-{node + 1} mlx5_{rail}", self._rate(node, rail)
                        yield f'[{at + 1}]\t"{self.host_id(node, rail)}"[1]\t\t# "{name}" lid 0 {rate}'
                for spine, link in self._uplinks():
                    port = self.nodes_per_leaf + spine * self.links_per_spine + link + 1
                    there = self._spine_port(group, rail, link)
                    yield f'[{port}]\t"{self.spine_id(spine)}"[{there}]\t\t# "" lid 0 4xHDR'
                yield ""

    def _spines(self) -> Iterator[str]:
        ports = self.groups * self.rails * self.links_per_spine
        for spine in range(self.spines):
            own = self.spine_id(spine)
            yield f"switchguid=0x{own[2:]}({own[2:]})"
            yield f'Switch\t{ports} "{own}"\t\t# "spine-{spine + 1}" base port 0 lid 0 lmc 0'
            for group in range(self.groups):
                for rail in range(self.rails):
                    for link in range(self.links_per_spine):
                        there = self.nodes_per_leaf + spine * self.links_per_spine + link + 1
                        here = self._spine_port(group, rail, link)
                        yield f'[{here}]\t"{self.leaf_id(group, rail)}"[{there}]\t\t# "" lid 0 4xHDR'
            yield ""

    def _hosts(self) -> Iterator[str]:
        for node in range(self.nodes):
            for rail in range(self.rails):
                leaf = self.leaf_id(node // self.nodes_per_leaf, rail)
                yield f"caguid=0x{self.host_id(node, rail)[2:]}"
                yield f'Ca\t1 "{self.host_id(node, rail)}"\t\t# "gpu-node-{node + 1} mlx5_{rail}"'
                port, rate = node % self.nodes_per_leaf + 1, self._rate(node, rail)
                yield f'[1]\t"{leaf}"[{port}]\t\t# lid 0 lmc 0 "" lid 0 {rate}'
                yield ""

    def _rate(self, node: int, rail: int) -> str:
        return "1xHDR" if self.host_id(node, rail) == self.slow_host else "4xHDR"

    def _uplinks(self) -> Iterator[tuple[int, int]]:
        return ((spine, link) for spine in range(self.spines) for link in range(self.links_per_spine))

    def _spine_port(self, group: int, rail: int, link: int) -> int:
        return (group * self.rails + rail) * self.links_per_spine + link + 1


# 512 host ports, as 64 nodes with eight rails have: 16 leaves of 48 ports, 8 spines of 32.
LARGE = Plan(nodes=64, rails=8, nodes_per_leaf=32, spines=8, links_per_spine=2)


@dataclass(frozen=True, slots=True)
class Fabric:
    """A fabric that runs; `environment` lets a program on its first host see it."""

    plan: Plan
    console: Path
    environment: Mapping[str, str]

    def say(self, command: str) -> None:
        """Give ibsim's console a command: Unlink, ReLink, PerformanceSet."""
        with self.console.open("w") as console:
            console.write(command + "\n")

    def ask(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=60)
        return done.stdout

    def programs(self, folder: Path) -> str:
        """A PATH with infiniband-diags that see this fabric, for programs that start them as they are."""
        variables = " ".join(
            f"{name}={self.environment[name]}" for name in ("LD_PRELOAD", "SIM_HOST", "IBSIM_SOCKNAME")
        )
        there = servers.require("ibnetdiscover").parent
        for program in ("ibnetdiscover", "iblinkinfo", "ibqueryerrors"):
            # libumad2sim leaves its files where a program starts.
            (folder / program).write_text(f'#!/bin/sh\ncd {folder} && exec env {variables} {there}/{program} "$@"\n')
            (folder / program).chmod(0o755)
        return f"{folder}:/usr/bin:/bin"

    def wait(self, state: str = "Active") -> None:
        """Wait until the first host's port has this state."""
        until(
            lambda: f"State: {state}" in self.ask("ibstat"),
            what=f"the simulated port is {state}",
            timeout_seconds=READY_SECONDS,
            interval_seconds=PROGRAM_SECONDS,
        )


@contextlib.contextmanager
def running(plan: Plan, folder: Path) -> Iterator[Fabric]:
    """The fabric from the moment its subnet manager has brought it up; skipped where the programs are missing."""
    for program in ("ibsim", "opensm", "ibnetdiscover"):
        servers.require(program)
    netlist, console = folder / "fabric.net", folder / "console"
    netlist.write_text(plan.netlist())
    os.mkfifo(console)
    library = next(path for path in SIMULATED_UMAD if Path(path).exists())
    own = {
        "IBSIM_SOCKNAME": f"wk-{os.getpid()}-{folder.name}",
        "OSM_TMP_DIR": str(folder),
        "OSM_CACHE_DIR": str(folder),
    }
    plain = {**os.environ, **own}
    seeing = {**plain, "LD_PRELOAD": library, "SIM_HOST": plan.host_id(0, 0)}
    with contextlib.ExitStack() as started:
        fifo = os.open(console, os.O_RDWR)
        started.callback(os.close, fifo)
        _start(started, ["ibsim", "-s", str(netlist)], plain, folder=folder, stdin=fifo)
        fabric = Fabric(plan, console, seeing)
        fabric.wait("Initializing")
        _start(started, ["opensm", "-f", str(folder / "opensm.log")], seeing, folder=folder)
        fabric.wait()
        yield fabric


def _start(
    started: contextlib.ExitStack,
    command: list[str],
    environment: Mapping[str, str],
    *,
    folder: Path,
    stdin: int = subprocess.DEVNULL,
) -> None:
    output = started.enter_context((folder / f"{command[0]}.out").open("wb"))
    path = servers.find(command[0])
    server = subprocess.Popen(
        [str(path), *command[1:]], env=environment, cwd=folder, stdin=stdin, stdout=output, stderr=subprocess.STDOUT
    )
    started.callback(servers.stop, server)
