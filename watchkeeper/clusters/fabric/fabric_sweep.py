"""A sweep of the InfiniBand fabric from this host, with the programs of infiniband-diags.

`ibnetdiscover` walks the fabric and keeps what it found in a file; `iblinkinfo` and `ibqueryerrors` read that file, so
the fabric is walked once and not three times. Everything only reads: no counter is cleared. Each program has a
deadline. `fabric_watch` calls `sweep` from a thread of the hub; so does `watchkeeper fabric sweep`.
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
TROUBLE = re.compile(r"^(?:ibwarn|ibpanic|iberror)|bad status \d+|timed out", re.MULTILINE)
TOO_LONG = f"it wrote more than {MAX_OUTPUT_BYTES:,} bytes, which no fabric needs"
REMEDY = "Run it by hand on this machine as root; `ibstat` says whether its port is Active"


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """How the fabric is looked at: from which adapter and port, with which names, and for how long."""

    timeout_seconds: float = 30.0
    adapter: str | None = None
    port: int | None = None
    node_names: Path | None = None
    reads_counters: bool = True
    # For the programs; None is our own environment.
    environment: Mapping[str, str] | None = None

    def options(self) -> list[str]:
        chosen = {"-C": self.adapter, "-P": self.port, "--node-name-map": self.node_names}
        return [text for name, value in chosen.items() if value is not None for text in (name, str(value))]


def sweep(settings: SweepSettings, *, at_ms: int) -> fabric.Fabric:
    """The fabric as it is now; CollectError where nothing can be said about it at all."""
    began = perf_counter()
    ask = commands.CommandRunner(settings.timeout_seconds, MAX_OUTPUT_BYTES, settings.environment)
    problems: list[str] = []
    unread: list[str] = []
    with tempfile.TemporaryDirectory(prefix="watchkeeper-fabric-") as folder:
        kept = f"{folder}/fabric"
        text = _must_answer(ask, ["ibnetdiscover", *settings.options(), "--cache", kept], problems)
        found = infiniband_fabric.read_devices(text.splitlines())
        if not found.devices:
            raise CollectError("it names no device at all", where="ibnetdiscover", remedy=REMEDY)
        if len(found.devices) == 1:
            remedy = "Look at its cable, or sweep from another host"
            raise CollectError("this host sees nothing but itself: its port has no link", remedy=remedy)
        shown = ["--load-cache", kept, *settings.options()]
        text = _must_answer(ask, ["iblinkinfo", "-l", *shown], problems)
        ports = infiniband_fabric.read_ports(text.splitlines(), found.device_of_port)
        if not ports:
            raise CollectError(f"no port is in its {len(text):,} characters", where="iblinkinfo", remedy=REMEDY)
        if settings.reads_counters:
            ports = _count(ask, shown, ports, owner_of=found.device_of_port, unread=unread)
    seconds = round(perf_counter() - began, 3)
    return fabric.Fabric(at_ms, SOURCE, found.devices, tuple(ports), tuple(problems), tuple(unread), seconds)


def _must_answer(ask: commands.CommandRunner, arguments: Sequence[str], problems: list[str]) -> str:
    answer = ask.run(arguments)
    program = arguments[0]
    if answer.outcome is commands.CommandOutcome.NOT_FOUND:
        remedy = "Install the package infiniband-diags, or set `fabric.sweep` on another host"
        raise CollectError("it is not installed here", where=program, remedy=remedy)
    if answer.outcome is not commands.CommandOutcome.ANSWERED:
        said = next((line for line in answer.text.splitlines() if line.strip()), "no word of why")
        raise CollectError(said.strip()[:300], where=program, remedy=REMEDY)
    if answer.is_truncated:
        # No fabric is so large; reading it would keep a thread busy for half a minute.
        raise CollectError(TOO_LONG, where=program, remedy=REMEDY)
    _note_trouble(program, answer, problems)
    return answer.text


def _note_trouble(program: str, answer: commands.CommandResult, problems: list[str]) -> None:
    unanswered = len(TROUBLE.findall(answer.text))
    if unanswered:
        problems.append(f"{program}: {unanswered} requests to devices were not answered")


def _count(
    ask: commands.CommandRunner,
    shown: Sequence[str],
    ports: list[fabric.FabricPort],
    *,
    owner_of: Mapping[str, str],
    unread: list[str],
) -> list[fabric.FabricPort]:
    """The ports with their counters; without them, and with a word about it, where these cannot be had.

    The first listing has errors, of ports that have some; the second has the traffic of every port that answered.
    """
    counters: dict[fabric.PortKey, dict[str, int]] = {}
    for option in ([], ["--counters"]):
        answer = ask.run(["ibqueryerrors", "--skip-sl", *shown, *option])
        if answer.is_truncated:
            unread.append(f"ibqueryerrors: {TOO_LONG}")
            return ports
        found, checked = infiniband_fabric.read_counters(answer.text.splitlines(), owner_of)
        # An exit code may stand for errors of ports as well as for one of the program: the summary decides.
        if checked == 0:
            said = next((line for line in answer.text.splitlines() if line.strip()), str(answer.outcome))
            unread.append(f"ibqueryerrors: no counters ({said.strip()[:200]})")
            return ports
        _note_trouble("ibqueryerrors", answer, unread)
        for key, values in found.items():
            counters.setdefault(key, {}).update(values)
    return infiniband_fabric.add_counters(ports, counters)
