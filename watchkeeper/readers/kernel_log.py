"""One line of a kernel log into a typed fact, whatever wrote the line down.

A kernel message is the same text everywhere; dmesg, journald, syslog and /dev/kmsg only put different
prefixes in front of it. `read_line` therefore looks for the message anywhere in the line (logs that
people hand in), while `read_record` takes a /dev/kmsg record, whose facility says who wrote it: a line
that user space wrote is not the kernel's word. The followers in `collect` make events of the facts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from watchkeeper.model import events, fleet


@dataclass(frozen=True, slots=True)
class KernelFact:
    """What one kernel line says happened; what it does not say is None. `text` is the kernel's own message."""

    kind: events.EventKind
    text: str
    code: int | None = None
    pci: str | None = None
    pid: int | None = None
    process: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """The driver naming the GPU at a PCI address, as it does before an Xid."""

    pci: str
    uuid: str


@dataclass(frozen=True, slots=True)
class KmsgRecord:
    """One record of /dev/kmsg; `facility` 0 is the kernel, anything else a program that wrote into the log."""

    facility: int
    level: int
    sequence: int
    since_boot_us: int
    text: str

    @property
    def is_from_kernel(self) -> bool:
        return self.facility == 0


# 0000:3b:00, 0000:3b:00.0, 00000000:3B:00.0, and 03:00 of drivers that print no domain
ADDRESS = r"(?P<pci>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2,4}:[0-9a-fA-F]{2}(?:\.[0-7])?)"

# NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
# NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=208042, Contained: CE User Channel (0x9). RST: No, D-RST: No
# NVRM: Xid (0000:03:00): 14, Channel 00000001
XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?{ADDRESS}"
    r"(?: GPU-I:(?P<gpu_instance>\d+))?(?: GPU-CI:(?P<compute_instance>\d+))?\): (?P<code>\d{1,6})\b"
    r"(?:, pid='?(?P<pid>\d{1,10}|<unknown>)'?)?(?:, name=(?P<name>[^,]*))?(?:, )?(?P<rest>.*)",
    re.DOTALL,
)
# … 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)
RECOVERY = re.compile(r"recovery action changed from 0x[0-9a-f]+ \([^)]*\) to 0x[0-9a-f]+ \(([^)]*)\)", re.IGNORECASE)
# … 45, pid=4711, name=python, Ch 00000008 caused by previous Xid 31
CAUSED_BY = re.compile(r"caused by previous Xid (\d+)")

# nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
# nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Data {0x989df540, 0x19627a00}
SXID = re.compile(
    rf"nvidia-nvswitch(?P<switch>\d+): SXid \((?:PCI:)?{ADDRESS}\): (?P<code>\d{{1,6}})\b"
    r"(?:, (?P<severity>Fatal|Non-fatal))?(?:, Link (?P<link>\d+))?",
    re.IGNORECASE,
)

# NVRM: GPU 0000:09:00.0: GPU has fallen off the bus.
# NVRM: fallen off the bus and is not responding to commands.     (older drivers; the address stands two lines above)
OFF_THE_BUS = re.compile(rf"NVRM: (?:GPU {ADDRESS}: (?:GPU )?has )?fallen off the bus")

# pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)
# pcieport 0000:00:01.1: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)
PCIE = re.compile(
    rf"(?P<driver>[\w-]+) {ADDRESS}: (?:AER: )?"
    r"PCIe Bus Error: severity=(?P<severity>[A-Za-z-]+(?: \([A-Za-z-]+\))?)(?:, type=(?P<layer>[^,(]+))?"
)

# mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400
# mce: [Hardware Error]: Machine check events logged
MACHINE_CHECK = re.compile(
    r"mce: \[Hardware Error\]: (?:Machine check events logged|CPU (?P<cpu>\d+): Machine Check(?: Exception)?: "
    r"\w+ Bank (?P<bank>\d+): (?P<status>\w+))"
)

# Out of memory: Killed process 4711 (python) total-vm:8123456kB, anon-rss:8012345kB, file-rss:0kB
# Memory cgroup out of memory: Killed process 4711 (python) total-vm:8123456kB, anon-rss:8012345kB
# Out of memory: Kill process 456 (python) score 50 or sacrifice child
# Out of memory: Killed process 123, UID 48, (httpd)
OOM = re.compile(
    r"(?P<scope>Memory cgroup out|Out) of memory: Kill(?:ed)? process (?P<pid>\d{1,10})(?:, UID \d+,)? "
    r"\((?P<name>.*?)\)(?:.*?anon-rss:(?P<anon_rss_kib>\d+)kB)?",
    re.DOTALL,
)

# Linux version 6.8.0-45-generic (buildd@host) (x86_64-linux-gnu-gcc-13) #45-Ubuntu SMP …
BOOT = re.compile(r"Linux version (?P<release>\d[^ ]*) \(")

# NVRM: GPU at PCI:0000:9b:00: GPU-509665ad-b600-ac93-3616-d754b23d636d
IDENTITY = re.compile(rf"NVRM: GPU at (?:PCI:)?{ADDRESS}: (?P<uuid>GPU-[0-9a-fA-F-]{{36}})")

# 6,1042,532113221,-;NVRM: Xid (PCI:0000:5d:00): 79, …      (newer kernels add `,caller=T123` before the semicolon)
RECORD = re.compile(r"(\d{1,9}),(\d{1,20}),(\d{1,20}),[^;]*;([^\n]*)")


def _xid(match: re.Match[str]) -> KernelFact:
    found = match.groupdict()
    pid, name, rest = found["pid"], found["name"], found["rest"]
    known = {key: found[key] for key in ("gpu_instance", "compute_instance") if found[key] is not None}
    if (recovery := RECOVERY.search(rest)) is not None:
        known["recovery_action"] = recovery.group(1)
    if (caused := CAUSED_BY.search(rest)) is not None:
        known["caused_by_xid"] = caused.group(1)
    return KernelFact(
        events.EventKind.XID,
        match.group().rstrip(),
        code=int(found["code"]),
        pci=fleet.same_pci(found["pci"]),
        pid=int(pid) if pid is not None and pid.isdigit() else None,
        process=name if name not in (None, "", "<unknown>") else None,
        fields=known,
    )


def _sxid(match: re.Match[str]) -> KernelFact:
    return KernelFact(
        events.EventKind.SXID,
        match.string[match.start() :].rstrip(),
        code=int(match["code"]),
        pci=fleet.same_pci(match["pci"]),
        fields=_named(match, "switch", "severity", "link"),
    )


def _off_the_bus(match: re.Match[str]) -> KernelFact:
    pci = match["pci"]
    return KernelFact(events.EventKind.GPU_LOST, match.group(), pci=None if pci is None else fleet.same_pci(pci))


def _pcie(match: re.Match[str]) -> KernelFact:
    text = match.string[match.start() :].rstrip()
    named = _named(match, "driver", "severity", "layer")
    return KernelFact(events.EventKind.PCIE_ERROR, text, pci=fleet.same_pci(match["pci"]), fields=named)


def _machine_check(match: re.Match[str]) -> KernelFact:
    return KernelFact(events.EventKind.MACHINE_CHECK, match.group(), fields=_named(match, "cpu", "bank", "status"))


def _oom(match: re.Match[str]) -> KernelFact:
    scope = "node" if match["scope"] == "Out" else "cgroup"
    return KernelFact(
        events.EventKind.OOM_KILL,
        match.string[match.start() :].rstrip(),
        pid=int(match["pid"]),
        process=match["name"] or None,
        fields={"scope": scope} | _named(match, "anon_rss_kib"),
    )


def _boot(match: re.Match[str]) -> KernelFact:
    text = match.string[match.start() :].rstrip()
    return KernelFact(events.EventKind.NODE_BOOT, text, fields={"kernel": match["release"]})


def _identity(match: re.Match[str]) -> GpuIdentity:
    return GpuIdentity(fleet.same_pci(match["pci"]), match["uuid"])


def _named(match: re.Match[str], *names: str) -> dict[str, str]:
    return {name: match[name].strip() for name in names if match[name] is not None}


# The text on the left is looked for first: almost every line has none of them and never meets a pattern.
PATTERNS: tuple[tuple[str, re.Pattern[str], Callable[[re.Match[str]], KernelFact | GpuIdentity]], ...] = (
    ("NVRM: Xid", XID, _xid),
    (": SXid", SXID, _sxid),
    ("NVRM: GPU at", IDENTITY, _identity),
    ("fallen off the bus", OFF_THE_BUS, _off_the_bus),
    ("PCIe Bus Error", PCIE, _pcie),
    ("mce: [H", MACHINE_CHECK, _machine_check),
    ("ut of memory: K", OOM, _oom),
    ("Linux version", BOOT, _boot),
)
# A block of a log in which none of these stands has nothing of interest: so a flood of chatter costs next to nothing.
NEEDLES = tuple(needle.encode() for needle, _, _ in PATTERNS)


def read_line(line: str) -> KernelFact | GpuIdentity | None:
    """What a log line of any shape says, or None if it says nothing of interest."""
    for needle, pattern, build in PATTERNS:
        if needle in line and (match := pattern.search(line)) is not None:
            return build(match)
    return None


def read_message(record: KmsgRecord) -> KernelFact | GpuIdentity | None:
    """What a kernel record says; None for a record that user space wrote, however it looks.

    The message must start with its pattern: a program's name inside another message proves nothing.
    """
    if not record.is_from_kernel:
        return None
    for needle, pattern, build in PATTERNS:
        if needle in record.text and (match := pattern.match(record.text)) is not None:
            return build(match)
    return None


def read_record(record: str) -> KmsgRecord | None:
    """One record as /dev/kmsg gives it, or None if this is not one."""
    match = RECORD.match(record)
    if match is None:
        return None
    priority = int(match[1])
    return KmsgRecord(priority >> 3, priority & 7, int(match[2]), int(match[3]), match[4])


def read_log(lines: Iterable[str]) -> Iterator[tuple[int, KernelFact | GpuIdentity]]:
    """Every fact of a log with the number of its line, counted from 1."""
    for number, line in enumerate(lines, 1):
        fact = read_line(line)
        if fact is not None:
            yield number, fact
