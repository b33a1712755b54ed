"""Sweep the InfiniBand fabric from this host, with the programs of infiniband-diags.

`ibnetdiscover` discovers the fabric once and writes a cache file, which `iblinkinfo` and `ibqueryerrors` read; no
counter is cleared. `fabric_watch` calls `sweep` in a thread of the hub; `watchkeeper fabric sweep` calls it too.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from watchkeeper.errors import CollectError
from watchkeeper.kit import commands
from watchkeeper.model import fabric
from watchkeeper.readers.fabric import infiniband_fabric

SOURCE = "infiniband-diags"
# A line of iblinkinfo has 180 characters; a fabric of 100,000 ports fits three times.
MAX_OUTPUT_BYTES = 64 << 20
# ibwarn: [123] mad_rpc: _do_madrpc failed      src/query_smp.c:197; umad (…) bad status 110; Connection timed out
UNANSWERED = re.compile(r"^(?:ibwarn|ibpanic|iberror)|bad status \d+|timed out", re.MULTILINE)
OUTPUT_TOO_LONG = f"the output exceeds the limit of {MAX_OUTPUT_BYTES:,} bytes"
REMEDY = "Run it manually on this host as root, and check with `ibstat` that the port is Active"


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """The adapter and port to sweep from, the file of node names, and the timeout of each program."""

    timeout_seconds: float = 30.0
    adapter: str | None = None
    port: int | None = None
    node_names: Path | None = None
    # Of the programs; None: the environment of this process.
    environment: Mapping[str, str] | None = None

    def options(self) -> list[str]:
        values = {"-C": self.adapter, "-P": self.port, "--node-name-map": self.node_names}
        return [text for name, value in values.items() if value is not None for text in (name, str(value))]


def sweep(settings: SweepSettings, *, at_ms: int) -> fabric.Fabric:
    """Sweep the fabric now; CollectError if its devices or ports cannot be read."""
    started = perf_counter()
    runner = commands.CommandRunner(settings.timeout_seconds, MAX_OUTPUT_BYTES, settings.environment)
    problems: list[str] = []
    unread: list[str] = []
    with tempfile.TemporaryDirectory(prefix="watchkeeper-fabric-") as folder:
        cache_path = f"{folder}/fabric"
        text = _run_program(runner, ["ibnetdiscover", *settings.options(), "--cache", cache_path], problems)
        devices, device_of_port = infiniband_fabric.read_devices(text.splitlines())
        if not devices:
            raise CollectError("it lists no device", where="ibnetdiscover", remedy=REMEDY)
        if len(devices) == 1:
            remedy = "Check its cable, or sweep from another host"
            raise CollectError("this host is the only device in the sweep: its port has no link", remedy=remedy)
        cache_options = ["--load-cache", cache_path, *settings.options()]
        text = _run_program(runner, ["iblinkinfo", "-l", *cache_options], problems)
        ports = infiniband_fabric.read_ports(text.splitlines(), device_of_port)
        if not ports:
            problem = f"its output of {len(text):,} characters lists no port"
            raise CollectError(problem, where="iblinkinfo", remedy=REMEDY)
        ports = _add_counters(runner, cache_options, ports, owner_of=device_of_port, unread=unread)
    seconds = round(perf_counter() - started, 3)
    return fabric.Fabric(at_ms, SOURCE, devices, tuple(ports), tuple(problems), tuple(unread), seconds)


def _run_program(runner: commands.CommandRunner, arguments: Sequence[str], problems: list[str]) -> str:
    answer = runner.run(arguments)
    program = arguments[0]
    if answer.outcome is commands.CommandOutcome.NOT_FOUND:
        remedy = "Install the package infiniband-diags, or set `fabric.sweep` on another host"
        raise CollectError("it is not installed on this host", where=program, remedy=remedy)
    if answer.outcome is not commands.CommandOutcome.ANSWERED:
        first_line = next((line for line in answer.text.splitlines() if line.strip()), "no output")
        raise CollectError(first_line.strip()[:300], where=program, remedy=REMEDY)
    if answer.is_truncated:
        # No fabric is this large, and parsing the output would block a thread for half a minute.
        raise CollectError(OUTPUT_TOO_LONG, where=program, remedy=REMEDY)
    _count_unanswered(program, answer, problems)
    return answer.text


def _count_unanswered(program: str, answer: commands.CommandResult, problems: list[str]) -> None:
    unanswered = len(UNANSWERED.findall(answer.text))
    if unanswered:
        problems.append(f"{program}: {unanswered} requests to devices got no answer")


def _add_counters(
    runner: commands.CommandRunner,
    cache_options: Sequence[str],
    ports: list[fabric.FabricPort],
    *,
    owner_of: Mapping[str, str],
    unread: list[str],
) -> list[fabric.FabricPort]:
    """Add the counters to the ports; if they cannot be read, return the ports unchanged and append to `unread`."""
    # The first run lists the errors of ports that have any; the second lists the traffic of every port that answered.
    counters: dict[fabric.PortKey, dict[str, int]] = {}
    for option in ([], ["--counters"]):
        answer = runner.run(["ibqueryerrors", "--skip-sl", *cache_options, *option])
        if answer.is_truncated:
            unread.append(f"ibqueryerrors: {OUTPUT_TOO_LONG}")
            return ports
        port_counters, ports_checked = infiniband_fabric.read_counters(answer.text.splitlines(), owner_of)
        # The exit code is the same for errors of ports and for a failure of the program, so the summary decides.
        if ports_checked == 0:
            first_line = next((line for line in answer.text.splitlines() if line.strip()), str(answer.outcome))
            unread.append(f"ibqueryerrors: no counters ({first_line.strip()[:200]})")
            return ports
        _count_unanswered("ibqueryerrors", answer, unread)
        for key, values in port_counters.items():
            counters.setdefault(key, {}).update(values)
    return infiniband_fabric.add_counters(ports, counters)
