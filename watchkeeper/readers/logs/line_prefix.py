"""Read the time, node and rank of a log line from the prefixes that tools add.

The doctor uses it to name the node and rank of a finding and to order Xid events by time. Values that a prefix does not
contain are absent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

PREFIX_CHARACTERS = 400

# [rank1]:[E810 05:36:05.945860779 ProcessGroupNCCL.cpp:1899] …     [Rank 7] NCCL watchdog …     [default3]:…
# [PG ID 0 PG GUID 0(default_pg) Rank 1]     rank 3: …
# [1,23]<stdout>:gpu07:…      (mpirun --tag-output: job 1, rank 23)
# [2026-08-10 05:36:05 DP0 TP3] …     (Worker_TP3 pid=4711) …     (VllmWorker rank=3 pid=4711) …
RANK = re.compile(
    r"\[rank[ :]?(?P<a>\d+)\]|\[Rank (?P<b>\d+)\]|\[PG [^\]]{0,120}?Rank (?P<c>\d+)\]"
    r"|^\s*\[?(?:default|trainer|worker)(?P<d>\d+)\]:|(?:^\s*|[|:] ?)rank[ _=:]?(?P<e>\d+) ?[|\]]"
    r"|^\s*(?:\[?rank[ _=:]?(?P<j>\d+)\]?)[:\s]"
    r"|^\[[\d-]{8,10} [\d:.,]{8,15}(?: [DP]P\d+)* TP(?P<f>\d+)(?: EP\d+)?\]"
    r"|^\((?:\w*Worker\w*?_TP(?P<g>\d+)(?:_EP\d+)?|\w+ rank=(?P<h>\d+)) pid="
    r"|^\[\d{1,6},(?P<i>\d{1,6})\]<std(?:out|err)>:",
    re.IGNORECASE,
)
# gpu-node-7:18553:18611 [3] NCCL INFO …     [2026-03-13 17:26:02] gpu-node-7:4711:4712 [5] ibvwrap.c:262 NCCL WARN …
NCCL = re.compile(r"(?P<node>[A-Za-z0-9][\w.-]*):(?P<pid>\d+):\d+ \[(?P<gpu>-?\d+)\] ")
# Aug 10 20:36:51 gpu-node-a kernel: …     2026-08-10T05:36:05.1+00:00 gpu-node-a kernel: …
# <4>1 2026-08-10T05:36:05.1Z gpu-node-a kernel - - - …      (RFC 5424)
STRUCTURED = re.compile(r"^<\d{1,3}>1 \d{4}-\S+ (?P<node>[A-Za-z][\w.-]*) \S+ \S+ \S+ (?:-|\[)")
# messages:Jun 17 20:18:08 gpu07 kernel: …      gpu07 Mar 01 04:12:01.123 gpu07 kernel: …      (after the name of a
# file or node)
SYSLOG = re.compile(
    r"^(?:<\d+>)?(?:(?:[^\s=]{1,120}[: ])?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|\d{4}-\d\d-\d\d[T ]\S+) "
    r"(?P<node>[A-Za-z][\w.-]*) (?:[\w./-]+(?:\[\d+\])?: |kernel )"
)
# 10.1.2.3: kern: warning: […]     gpu07: NVRM: …      gpu07 | ERROR: nhc: …     (pdsh, talos, clush)
# 10.1.2.3:6665 [8.1] NVRM: …      (netconsole)
PARALLEL_SHELL = re.compile(r"^(?P<node>\d+\.\d+\.\d+\.\d+|[A-Za-z][\w-]*\d[\w.-]*)(?:: | \| |:\d+ (?=\[))(?=\S)")
# fatal: [gpu07]: FAILED! => …      (ansible)
ANSIBLE = re.compile(r"^(?:fatal|failed|ok|changed|skipping|unreachable): \[(?P<node>[A-Za-z][\w.-]*)\]")
# (RayWorkerVllm pid=219154, ip=10.0.0.7) …     (raylet, ip=10.0.0.7) …
RAY = re.compile(
    r"^\((?P<process>[\w:.-]+)(?:\([^)]*\))?(?: rank=\d+)?(?=[ ,]+(?:pid|ip)=)"
    r"(?: pid=(?P<pid>\d+))?(?:, ip=(?P<node>[\w.:-]+))?\)"
)
# … [pod/trainer-0/main] …      (kubectl logs --prefix, and `shipped_text` for log shippers)
POD = re.compile(r"\[pod/(?P<pod>[^/\]\s]+)/[^\]]{0,100}\]")
# … [node/10.0.0.7] log: …      (`shipped_text`, if syslog's format does not fit)
NODE = re.compile(r"\[node/(?P<node>[\w.:-]*[A-Za-z.:][\w.:-]*)\]")
# 2026-08-10T05:36:05Z {host="gpu07", job="varlogs"} NVRM: …      (Loki's logcli, and Prometheus text)
LABELS = re.compile(
    r"(?i)[{,] ?(?:(?:hostname|host|nodename|node_name|node|kubernetes_node_name|kubernetes_host|instance)"
    r'=\\?"(?P<node>[A-Za-z][\w.-]*)|(?:pod|pod_name|kubernetes_pod_name)=\\?"(?P<pod>[\w.-]+))'
)
# Rank 9, node gpu07, device 1, iteration 33210: …      (Megatron)
MEGATRON = re.compile(r"\b[Rr]ank (?P<rank>\d+), node (?P<node>[A-Za-z][\w.-]*), device (?P<gpu>\d+)\b")

NODE_PREFIXES = (SYSLOG, PARALLEL_SHELL, STRUCTURED, ANSIBLE)

# [Wed Jun 24 13:44:20 2026]
DMESG_TIME = re.compile(r"\[[A-Z][a-z]{2} ([A-Z][a-z]{2})\s+(\d+) (\d\d):(\d\d):(\d\d) (\d{4})\]")
# 2025-01-21T04:41:44,283302+00:00   2026-04-22T21:26:20.599488292Z   2026-04-22 06:34:20
ISO_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:?\d\d)?")
# 2022/05/13 10:09:23
SLASH_TIME = re.compile(r"\b(\d{4})/(\d\d)/(\d\d) (\d\d:\d\d:\d\d)\b")
# [42822.198504]; not [  +0.000316], which is a difference
BOOT_TIME = re.compile(r"\[\s*(\d+\.\d+)\]")
# Aug 10 20:36:51
SYSLOG_TIME = re.compile(r"^(?:<\d+>)?\W?([A-Z][a-z]{2}) ([ \d]\d) (\d\d):(\d\d):(\d\d)(\.\d+)?\b")
# [E810 05:36:05.945860779      E0822 08:51:42.925620       (glog and klog: month and day in one number)
GLOG_TIME = re.compile(r"(?:^|[\[\s])[IWEF](\d\d?)(\d\d) (\d\d):(\d\d):(\d\d)(\.\d+)?\b")
# ERROR 05-12 19:01:18 [serving_chat.py:885]       (vLLM)
DAY_TIME = re.compile(r"\b[A-Z]{4,8} (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(\.\d+)?\b")
# Every time format except seconds since boot contains this; most lines of a training job have no time.
TIME_OF_DAY = re.compile(r"\d\d:\d\d:\d\d")
# A leap year, so that every date without a year is valid in it.
YEARLESS = 2000
MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MONTHS = {name: number for number, name in enumerate(MONTH_NAMES, 1)}
# slurmstepd-gpu07: error: …      (the daemon's name before the node's)
DAEMON = re.compile(r"^(?:slurmstepd|slurmd)-?")
NOT_NODES = frozenset(
    {"kernel", "kern", "error", "warning", "warn", "info", "debug", "fatal", "critical", "notice", "systemd", "srun"}
    | {"slurmstepd", "localhost"}
)

# nvidia-nvswitch3: SXid …      mlx5_0: Port: 1 Link DOWN      (numbered devices that look like nodes)
DEVICE = re.compile(r"(?:nvidia-nvswitch|mlx[45]_|nvme|eth|ib|ibs|md|veth)\d+$|nvme\d+n\d+$")


def read_prefix(line: str) -> Mapping[str, str]:
    """The `node`, `pod`, `rank`, `gpu` (CUDA device) and `pid` in the prefix of a line; others are absent."""
    head = line[:PREFIX_CHARACTERS]
    fields: dict[str, str] = {}
    if (ray := RAY.match(head)) is not None:
        fields.update({name: value for name, value in ray.groupdict().items() if value})
    if (nccl := NCCL.search(head)) is not None:
        fields.update(nccl.groupdict())
    elif (
        ray is None
        and (host := next(filter(None, (pattern.match(head) for pattern in NODE_PREFIXES)), None)) is not None
        and host["node"].lower() not in NOT_NODES
        and DEVICE.match(host["node"]) is None
    ):
        node = DAEMON.sub("", host["node"])
        fields.update({"node": node} if node else {})
    if (rank := RANK.search(head)) is not None:
        fields["rank"] = next(value for value in rank.groups() if value is not None)
    for pattern, needle in ((POD, "[pod/"), (NODE, "[node/"), (MEGATRON, ", device ")):
        if needle in head and (match := pattern.search(head)) is not None:
            fields.update(match.groupdict())
    if '="' in head:
        for label in reversed(list(LABELS.finditer(head))):
            fields |= {key: value for key, value in label.groupdict().items() if value and value not in NOT_NODES}
    return fields


def read_time(line: str) -> datetime | None:
    """The absolute time of a line; None for a time without year or date."""
    head = line[:PREFIX_CHARACTERS]
    try:
        if (match := DMESG_TIME.search(head)) is not None:
            month, day, hour, minute, second, year = match.groups()
            return datetime(int(year), MONTHS[month], int(day), int(hour), int(minute), int(second), tzinfo=UTC)
        if (match := ISO_TIME.search(head)) is not None:
            date, time_of_day, fraction, zone = match.groups()
            microseconds = (fraction or "0")[:6].ljust(6, "0")
            offset = "+00:00" if zone in (None, "Z") else zone
            return datetime.fromisoformat(f"{date}T{time_of_day}.{microseconds}{offset}")
        if (match := SLASH_TIME.search(head)) is not None:
            return datetime.fromisoformat(f"{match[1]}-{match[2]}-{match[3]}T{match[4]}+00:00")
    except (ValueError, KeyError):
        return None
    return None


@dataclass(frozen=True, slots=True)
class LineClock:
    """The times of a line: absolute, without a year (as in the year `YEARLESS`), and seconds since boot."""

    at: datetime | None = None
    yearless: datetime | None = None
    since_boot: float | None = None


def read_clock(line: str) -> LineClock | None:
    """The times in the prefix of a line; None if it has none."""
    if TIME_OF_DAY.search(line, 0, PREFIX_CHARACTERS) is None:
        since_boot = read_seconds_since_boot(line)
        return None if since_boot is None else LineClock(since_boot=since_boot)
    at = read_time(line)
    clock = LineClock(at, None if at is not None else _read_yearless(line), read_seconds_since_boot(line))
    return clock if clock != LineClock() else None


def _read_yearless(line: str) -> datetime | None:
    head = line[:PREFIX_CHARACTERS]
    match = SYSLOG_TIME.match(head) or GLOG_TIME.search(head) or DAY_TIME.search(head)
    if match is None:
        return None
    month, day, hour, minute, second, fraction = match.groups()
    month_number = MONTHS.get(month) if month.isalpha() else int(month)
    microseconds = int(float(fraction or 0) * 1_000_000)
    clock = (int(hour), int(minute), int(second), microseconds)
    try:
        return datetime(YEARLESS, month_number or 0, int(day), *clock, tzinfo=UTC)
    except ValueError:
        return None


def read_seconds_since_boot(line: str) -> float | None:
    match = BOOT_TIME.search(line[:PREFIX_CHARACTERS])
    return None if match is None else float(match[1])
