"""Recognise kernel messages about GPUs and their node in a line of any kernel log.

`read_line` searches the whole line, for logs that users provide. `read_message` reads a /dev/kmsg record, and ignores
records that user space wrote; the followers in `agent.kernel` turn its facts into events.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from watchkeeper.model import events, fleet


@dataclass(frozen=True, slots=True)
class KernelFact:
    """A fault or other event in a kernel message; missing values are None. `text` is the message."""

    kind: events.EventKind
    text: str
    code: int | None = None
    pci: str | None = None
    pid: int | None = None
    process: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """The UUID of the GPU at a PCI address, which the driver logs before an Xid."""

    pci: str
    uuid: str


@dataclass(frozen=True, slots=True)
class KmsgRecord:
    """One record of /dev/kmsg; `facility` 0 is the kernel, any other is a program that wrote into the log."""

    facility: int
    level: int
    sequence: int
    since_boot_us: int
    text: str


# 0000:3b:00, 0000:3b:00.0, 00000000:3B:00.0, and 03:00 of drivers that print no domain
BARE_ADDRESS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2,4}:[0-9a-fA-F]{2}(?:\.[0-7])?"
ADDRESS = rf"(?P<pci>{BARE_ADDRESS})"

# NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
# NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=208042, Contained: CE User Channel (0x9). RST: No, D-RST: No
# NVRM: Xid (0000:03:00): 14, Channel 00000001
# NVRM: Xid (PCI:...): 145, RLW_RXPIPE Nonfatal …       (users redact addresses)
XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?(?:{ADDRESS}|[^()\n]{{1,24}}?)"
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
# NVRM: fallen off the bus and is not responding to commands.     (older drivers; the address is two lines above)
GPU_LOST = re.compile(rf"NVRM: (?:GPU (?:at )?(?:PCI:)?{ADDRESS}:? (?:GPU )?has )?fallen off the bus")

# NVRM: GPU0 _kgspRpcRecvPoll: GSP RM heartbeat timed out
# NVRM: _issueRpcAndWait: rpcRecvPoll timedout for fn 76!
# NVRM: Timeout waiting for RPC from GSP! Expected function 4097 (GSP_INIT_DONE) (0x0 0x0).
# NVRM: GPU0 RmInitAdapter: Cannot initialize GSP firmware RM
GSP = re.compile(
    r"NVRM: (?:GPU(?P<driver_gpu>\d+) )?(?:\w+: )?(?:(?:GSP RM h|H)eartbeat timed out|rpcRecvPoll timed ?out"
    r"|Timeout waiting for RPC from GSP|Timeout after \d+s of waiting for RPC response from GPU\d+ GSP"
    r"|Cannot initialize GSP firmware|\*+ GSP-CrashCat Report)"
)

# NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!
# NVRM: GPU2 knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!
# nvidia-nvlink: Failed to train link 3    (the module's messages at load time contain none of these words)
NVLINK = re.compile(
    r"(?:NVRM: (?:GPU(?P<driver_gpu>\d+) )?knvlink\w+: "
    r"[^\n]*(?:postRxDetLinkMask failed|Rx Detect Link mask|rain[^\n]*fail)"
    r"|nvidia-nvlink\d*: [^\n]*(?:[Ff]ail|[Ee]rror|[Tt]imed? ?out))"
)

# NVRM: GPU 0000:17:00.0: RmInitAdapter failed! (0x62:0x65:1860)
INIT_FAILED = re.compile(rf"NVRM: (?:GPU {ADDRESS}: )?RmInitAdapter failed!")
# NVRM: No NVIDIA devices probed.     (nouveau or vfio-pci holds them all)
# NVRM: None of the NVIDIA devices were initialized.
NO_DEVICES = re.compile(
    r"NVRM: (?:No NVIDIA (?:graphics adapter|devices) probed|None of the NVIDIA [\w ]+ were initialized)"
)
# NVRM: API mismatch: the client has the version 535.104.05, but
API_MISMATCH = re.compile(r"NVRM: API mismatch: ")

# pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)
# pcieport 0000:00:01.1: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)
PCIE = re.compile(
    rf"(?P<driver>[\w-]+) {ADDRESS}: (?:AER: )?"
    r"PCIe Bus Error: severity=(?P<severity>[A-Za-z-]+(?: \([A-Za-z-]+\))?)(?:, type=(?P<layer>[^,(]+))?"
)
# pcieport 0000:16:02.0: AER: Uncorrectable (Fatal) error message received from 0000:17:00.0 (no details found)
# pcieport 0000:16:02.0: DPC: containment event, status:0x1f01 source:0x0000
# pcieport 0000:00:01.0: pciehp: Slot(1): Link Down
PCIE_DEVICE_LOST = re.compile(
    rf"(?P<driver>[\w-]+) {ADDRESS}: (?:AER: (?:Multiple )?"
    r"(?P<severity>Uncorrect\w+ \([A-Za-z-]+\)) error[^\n]*no details found"
    r"|(?P<contained>DPC: containment event)|pciehp: Slot\([^)]*\): (?P<slot>Link Down|Card not present))"
)

# mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400
# mce: [Hardware Error]: Machine check events logged
# [Hardware Error]: Uncorrected, software restartable error.      (AMD)
# {1}[Hardware Error]: event severity: recoverable                (firmware first, APEI)
MACHINE_CHECK = re.compile(
    r"(?:mce: |\{\d+\})?\[Hardware Error\]: (?:Machine check events logged"
    r"|CPU (?P<cpu>\d+): Machine Check(?: Exception)?: \w+ Bank (?P<bank>\d+): (?P<status>\w+)"
    r"|(?P<amd>Corrected|Deferred|Uncorrected|System Fatal)(?: error)?, |(?P<fatal>System Fatal) error"
    r"|event severity: (?P<apei>corrected|recoverable|fatal))"
)
# Bit 61 of a bank's status: the error was not corrected (Intel SDM 3B, 17.3.2.2; AMD has the same bit).
UNCORRECTED_BIT = 1 << 61
# EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x5c1a2 …)
EDAC = re.compile(r"EDAC MC(?P<controller>\d+): (?P<count>\d+) (?P<letter>[CU])E (?:[^\n]*? on (?P<dimm>[^ (]+))?")
# Memory failure: 0x3f2a1c: Killing python:4711 due to hardware memory corruption
# mce: Uncorrected hardware memory error in user-access at 3f2a1c080
MEMORY_FAILURE = re.compile(
    r"Memory failure: 0x[0-9a-f]+: Killing (?P<name>[^\n]*):(?P<pid>\d{1,10}) due to hardware memory corruption"
    r"|mce: Uncorrected hardware memory error"
)

# mlx5_core 0000:d2:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count
# mlx5_core 0000:05:00.0: print_health_info:431: Health issue observed, firmware internal error, severity(3) ERROR:
# mlx5_core 0000:03:00.0: wait_func:1195:(pid 196): ENABLE_HCA(0x104) timeout. Will cause a leak of a command …
# mlx5_core 0000:81:00.0: Port module event[error]: module 0, Cable error, Power budget exceeded
NIC = re.compile(
    rf"mlx5_core {ADDRESS}(?: \S+)?: (?:\w+:\d+:(?:\(pid \d+\):)? ?)?(?:INFO: )?(?P<problem>device's health compromised"
    r"|Fatal error \d+ detected|FW is unable to respond|handling bad device|High temperature on sensors"
    r"|Health issue observed, [^\n]*severity\(\d\) (?:EMERGENCY|ALERT|CRITICAL|ERROR)"
    r"|synd 0x[0-9a-f]+: (?:firmware internal|unrecoverable hardware) error"
    r"|[A-Z_]+\(0x[0-9a-f]+\) timeout\. Will cause a leak|Port module event\[error\]: [^\n]*)"
)
# mlx5_core 0000:12:00.0 ens3f0np0: Link down
LINK_DOWN = re.compile(rf"mlx5_core {ADDRESS} (?P<interface>\S+): Link down")

# nvidia 0000:07:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 address=0x80000040 flags=0x0020]
# AMD-Vi: Event logged [IO_PAGE_FAULT device=07:00.0 domain=0x0003 address=0x80000040 flags=0x0020]
# DMAR: [DMA Write NO_PASID] Request device [3b:00.0] fault addr 0xffc00000 [fault reason 0x05] PTE Write access is …
# arm-smmu-v3 arm-smmu-v3.5.auto: event: F_TRANSLATION client: 0008:01:00.0 sid: 0x10000 ssid: 0x0 iova: 0xffc00000
# (00:02.0 is Intel's integrated graphics, where the fault is frequent and harmless)
IOMMU = re.compile(
    rf"(?:(?P<driver>[\w-]+) {ADDRESS}: )?AMD-Vi: Event logged \[IO_PAGE_FAULT(?: device=(?P<amd>{BARE_ADDRESS}))?"
    r"|DMAR: \[DMA (?:Read|Write)(?: NO_PASID)?\] Request [Dd]evice "
    r"\[(?P<intel>(?!(?:0x)?00:(?:0x)?02\.0)(?:0x)?[0-9a-f]{1,2}:(?:0x)?[0-9a-f]{1,2}\.[0-7])\]"
    rf"|arm-smmu-v3 \S+: event(?: 0x10 received|: F_TRANSLATION client: (?:(?P<arm>{BARE_ADDRESS})(?= )|\S+))"
)
# nfs: server 10.0.0.9 not responding, still trying
# LustreError: 167-0: work-MDT0000-mdc-ffff8820: This client was evicted by work-MDT0000; in progress operations …
# ceph: [5d1c 4711]: mds0 hung
# (Lustre's "Connection to … was lost" is not matched: most such connections recover within seconds)
STORAGE = re.compile(
    r"(?:nfs|lockd): server (?P<server>\S+) not responding(?P<gives_up>, timed out)?"
    r"|LustreError: [^\n]{0,80}: This client was evicted by (?P<target>[^\s;]+)"
    r"|ceph: [^\n]{0,60}?(?P<mds>mds\d+) hung\b"
)
# nfs: server 10.0.0.9 OK
# Lustre: work-MDT0000-mdc-ffff8820: Connection restored to work-MDT0000 (at 10.0.0.8@o2ib)
# ceph: [5d1c 4711]: mds0 came back
STORAGE_RECOVERED = re.compile(
    r"(?:nfs|lockd): server (?P<server>\S+) OK\b"
    r"|Lustre: [^\n]{0,80}: Connection restored to (?:service )?(?P<target>[^\s;]+)"
    r"|ceph: [^\n]{0,60}?(?P<mds>mds\d+) (?:came back|recovery completed)\b"
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


Build = Callable[[re.Match[str]], KernelFact | GpuIdentity]


def _build_fact(
    match: re.Match[str], kind: events.EventKind, fields: Mapping[str, str], *, code: int | None = None
) -> KernelFact:
    """The fact of a match: its text to the end, and the code, address and process that it names."""
    groups = match.groupdict()
    address, pid, name = groups.get("pci"), groups.get("pid"), groups.get("name")
    return KernelFact(
        kind,
        match.string[match.start() :].rstrip(),
        code=int(groups["code"]) if "code" in groups else code,
        pci=None if address is None else fleet.normalise_pci(address),
        pid=int(pid) if pid is not None and pid.isdigit() else None,
        process=name if name not in (None, "", "<unknown>") else None,
        fields=fields,
    )


def _present_groups(match: re.Match[str], *names: str) -> dict[str, str]:
    return {name: match[name].strip() for name in names if match[name] is not None}


def _fact(kind: events.EventKind, *names: str, code: int | None = None, **constants: str) -> Build:
    """A function that builds facts whose fields are `constants` and the named groups that matched."""
    return lambda match: _build_fact(match, kind, constants | _present_groups(match, *names), code=code)


def _build_xid(match: re.Match[str]) -> KernelFact:
    fields = _present_groups(match, "gpu_instance", "compute_instance")
    if (recovery := RECOVERY.search(match["rest"])) is not None:
        fields["recovery_action"] = recovery.group(1)
    if (previous_xid := CAUSED_BY.search(match["rest"])) is not None:
        fields["caused_by_xid"] = previous_xid.group(1)
    return _build_fact(match, events.EventKind.XID, fields)


def _build_gpu_lost(match: re.Match[str]) -> KernelFact:
    return replace(_build_fact(match, events.EventKind.GPU_LOST, {}), text=match.group())


def _build_pcie_device_lost(match: re.Match[str]) -> KernelFact:
    """A device that the bus disconnected; without a severity in the message it is `Uncorrected`."""
    fields = _present_groups(match, "driver", "severity")
    fields.setdefault("severity", f"Uncorrected ({match['slot'] or 'contained'})")
    return _build_fact(match, events.EventKind.PCIE_ERROR, fields)


def _build_machine_check(match: re.Match[str]) -> KernelFact:
    """`severity` is absent for `Machine check events logged`, which the kernel writes for corrected errors too."""
    fields = _present_groups(match, "cpu", "bank", "status")
    severity_word = (match["amd"] or match["fatal"] or match["apei"] or "").lower()
    if match["status"] is not None:
        with contextlib.suppress(ValueError):
            fields["severity"] = "uncorrected" if int(match["status"], 16) & UNCORRECTED_BIT else "corrected"
    elif severity_word:
        fields["severity"] = "corrected" if severity_word in ("corrected", "deferred") else "uncorrected"
    return _build_fact(match, events.EventKind.MACHINE_CHECK, fields)


def _build_edac_error(match: re.Match[str]) -> KernelFact:
    severity = "uncorrected" if match["letter"] == "U" else "corrected"
    fields = {"severity": severity, "errors": match["count"]} | _present_groups(match, "controller", "dimm")
    return _build_fact(match, events.EventKind.MACHINE_CHECK, fields)


def _build_iommu_fault(match: re.Match[str]) -> KernelFact:
    address = next((match[name] for name in ("pci", "amd", "intel", "arm") if match[name] is not None), None)
    pci = None if address is None else fleet.normalise_pci(address)
    return replace(_build_fact(match, events.EventKind.IOMMU_FAULT, _present_groups(match, "driver")), pci=pci)


def _build_storage_lost(match: re.Match[str]) -> KernelFact:
    """The kernel logs the recovery of a server, except for requests that timed out."""
    recovery_fields = {} if match["gives_up"] else {events.REPORTS_RECOVERY: "1"}
    return _build_fact(match, events.EventKind.STORAGE_LOST, _server_fields(match) | recovery_fields)


def _build_storage_recovered(match: re.Match[str]) -> KernelFact:
    return _build_fact(match, events.EventKind.STORAGE_BACK, _server_fields(match))


def _server_fields(match: re.Match[str]) -> dict[str, str]:
    server_name = match["server"] or match["target"] or match["mds"]
    return {events.SERVER: server_name.removesuffix("_UUID")}


def _build_oom_kill(match: re.Match[str]) -> KernelFact:
    scope = "node" if match["scope"] == "Out" else "cgroup"
    return _build_fact(match, events.EventKind.OOM_KILL, {"scope": scope} | _present_groups(match, "anon_rss_kib"))


# The text on the left is a fast pre-filter: almost every line contains none of them, and no pattern is run.
# The code of a driver fault is NVML's return code for the same fault, so that both reports become one condition.
PATTERNS: tuple[tuple[str, re.Pattern[str], Build], ...] = (
    ("NVRM: Xid", XID, _build_xid),
    (": SXid", SXID, _fact(events.EventKind.SXID, "switch", "severity", "link")),
    ("NVRM: GPU at", IDENTITY, lambda match: GpuIdentity(fleet.normalise_pci(match["pci"]), match["uuid"])),
    ("fallen off the bus", GPU_LOST, _build_gpu_lost),
    ("NVRM: ", GSP, _fact(events.EventKind.GSP_ERROR, "driver_gpu")),
    ("nvlink", NVLINK, _fact(events.EventKind.NVLINK_ERROR, "driver_gpu")),
    ("RmInitAdapter", INIT_FAILED, _fact(events.EventKind.DRIVER_FAULT, cause="gpu_missing", code=6)),
    ("NVRM: No", NO_DEVICES, _fact(events.EventKind.DRIVER_FAULT, cause="driver_not_loaded", code=9)),
    ("NVRM: API", API_MISMATCH, _fact(events.EventKind.DRIVER_FAULT, cause="driver_library_mismatch", code=18)),
    ("PCIe Bus Error", PCIE, _fact(events.EventKind.PCIE_ERROR, "driver", "severity", "layer")),
    ("no details found", PCIE_DEVICE_LOST, _build_pcie_device_lost),
    (": DPC: ", PCIE_DEVICE_LOST, _build_pcie_device_lost),
    (": pciehp: ", PCIE_DEVICE_LOST, _build_pcie_device_lost),
    ("[Hardware Error]: ", MACHINE_CHECK, _build_machine_check),
    ("EDAC MC", EDAC, _build_edac_error),
    ("hardware memory ", MEMORY_FAILURE, _fact(events.EventKind.MACHINE_CHECK, severity="uncorrected")),
    ("mlx5_core ", LINK_DOWN, _fact(events.EventKind.LINK_DOWN, "interface")),
    ("mlx5_core ", NIC, _fact(events.EventKind.NIC_ERROR, "problem")),
    ("AMD-Vi: Event", IOMMU, _build_iommu_fault),
    ("DMAR: [DMA", IOMMU, _build_iommu_fault),
    ("arm-smmu-v3 ", IOMMU, _build_iommu_fault),
    ("nfs: server", STORAGE, _build_storage_lost),
    ("lockd: server", STORAGE, _build_storage_lost),
    ("was evicted by", STORAGE, _build_storage_lost),
    ("ceph: ", STORAGE, _build_storage_lost),
    ("nfs: server", STORAGE_RECOVERED, _build_storage_recovered),
    ("lockd: server", STORAGE_RECOVERED, _build_storage_recovered),
    ("Connection restored", STORAGE_RECOVERED, _build_storage_recovered),
    ("ceph: ", STORAGE_RECOVERED, _build_storage_recovered),
    ("ut of memory: K", OOM, _build_oom_kill),
    ("Linux version", BOOT, lambda match: _build_fact(match, events.EventKind.NODE_BOOT, {"kernel": match["release"]})),
)
# A block of a log without any of these texts is skipped, so that a flood of other messages costs almost nothing.
NEEDLES = tuple(dict.fromkeys(needle.encode() for needle, _, _ in PATTERNS))


def read_line(line: str) -> KernelFact | GpuIdentity | None:
    """The fact in a log line with any prefix; None if no pattern matches."""
    return _find_fact(line, re.Pattern.search)


def read_message(record: KmsgRecord) -> KernelFact | GpuIdentity | None:
    """The fact in a kernel record; None if no pattern matches, or if user space wrote the record."""
    # The pattern must match at the start of the message: a program can put any text into its name.
    return _find_fact(record.text, re.Pattern.match) if record.facility == 0 else None


def _find_fact(
    text: str, find: Callable[[re.Pattern[str], str], re.Match[str] | None]
) -> KernelFact | GpuIdentity | None:
    for needle, pattern, build in PATTERNS:
        if needle in text and (match := find(pattern, text)) is not None:
            return build(match)
    return None


def read_record(record: str) -> KmsgRecord | None:
    """Parse a record of /dev/kmsg; None for any other text."""
    match = RECORD.match(record)
    if match is None:
        return None
    priority = int(match[1])
    return KmsgRecord(priority >> 3, priority & 7, int(match[2]), int(match[3]), match[4])
