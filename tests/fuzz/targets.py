"""What strangers hand us as bytes, and the function that has to survive it: an answer or an error of our own, soon.

Each target has seeds that are right, from which `mutate` makes ones that are almost right.
"""

from __future__ import annotations

import gzip
import io
import pickle
import random
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.config import loading
from watchkeeper.doctor import examine
from watchkeeper.errors import WatchkeeperError
from watchkeeper.kit import evidence_file
from watchkeeper.model.labels import Labels
from watchkeeper.notify import routing
from watchkeeper.query.promql import parser
from watchkeeper.query.remote import remote_write
from watchkeeper.readers import bundles, exposition
from watchkeeper.readers.logs import kernel_log
from watchkeeper.remediate import policy
from watchkeeper.rules import rulefile
from watchkeeper.scrape import discovery, prometheus_config
from watchkeeper.store import recording

PACKS = Path(rulefile.__file__).parents[1] / "packs"


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    feed: Callable[[bytes], object]
    seeds: tuple[bytes, ...]


def text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def in_file(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    def feed(content: bytes) -> object:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(content)
            return read(path)

    return feed


def read_exposition(content: bytes) -> object:
    read = exposition.ExpositionParser()
    first = read.parse(content)
    # The second page of a target takes the shortcuts that the first one has laid.
    return first, read.parse(content), exposition.ExpositionParser().parse(content, openmetrics=True)


def read_logs(content: bytes) -> object:
    return examine.examine([bundles.Stream("fuzz.log", io.BytesIO(content))])


def read_archive(content: bytes) -> object:
    return examine.examine(bundles.open_stream("fuzz.tar.gz", io.BytesIO(content)))


def _tar() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("dmesg.log")
        content = b"NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def _zip() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a/nccl.log", NCCL)
    return packed.getvalue()


def _files(pattern: str, most: int = 12) -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in sorted(PACKS.glob(pattern))[:most])


def _exprs() -> tuple[bytes, ...]:
    return tuple(rule.expr.encode() for rule in rulefile.load_rules(sorted((PACKS / "rules").glob("*.yaml"))).rules)


NCCL = b"""n1:4711:4812 [3] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4791> with status=12 opcode=0 len=0 \
vendor err 129
[rank3]:[E1115 12:00:00.000 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=8, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds \
before timing out.
"""
KERNEL = b"""[ 1234.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.
4,1042,6000000,-;NVRM: Xid (PCI:0000:3b:00): 48, pid='<unknown>', name=<unknown>, DBE (double bit error)
[ 99.1] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 32 LTSSM Fault Up
[ 1.0] pcieport 0000:00:01.0: AER: Corrected error received: 0000:3b:00.0
Nov 15 12:00:00 n1 kernel: Out of memory: Killed process 4711 (python) total-vm:1kB, anon-rss:1kB, UID:0
"""
PAGE = b"""# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1",Hostname="n\\"1\\n"} 45 1731672000000
# TYPE h histogram
h_bucket{le="+Inf"} 3 # {trace_id="a"} 0.5 1.5
h_sum NaN
h_count 3
# EOF
"""
SETTINGS = b"""[hub]
port = 9480
trusted_proxies = ["10.0.0.0/8"]
[fleet]
sd_files = ["targets.json"]
scrape_interval = "15s"
[[remediate.trust]]
mode = "ask"
cause = "gpu_fell_off_bus"
"""
ROUTES = b"""[[receivers]]
name = "oncall"
webhook = "https://example.org/hook"
[[routes]]
receivers = ["oncall"]
match = ['severity="critical"']
hours = ["Mon-Fri 08:00-18:00"]
zone = "Europe/Berlin"
"""
SCRAPES = b"""global: {scrape_interval: 15s}
scrape_configs:
  - job_name: gpu
    static_configs: [{targets: ["n1:9400"], labels: {rack: r1}}]
    relabel_configs: [{source_labels: [__address__], regex: "(.*):.*", target_label: node, replacement: "$1"}]
"""
GROUPS = (
    b'[{"targets": ["n1:9400"], "labels": {"__meta_watchkeeper_node": "n1", "__meta_watchkeeper_expected_gpus": "8"}}]'
)
DUMP = pickle.dumps({"version": "2.4", "entries": [{"profiling_name": "nccl:all_reduce", "state": "started"}]}, 2)
WRITE = remote_write.encode([(Labels({"__name__": "a", "b": "c"}), [1, 2], [0.5, float("nan")])])
RECORDING = gzip.compress(b'{"watchkeeper_recording": 1, "since": "2026-11-15T12:00:00Z"}\n{"kind": "event"}\n')

TARGETS = (
    Target("exposition", read_exposition, (PAGE,)),
    Target("promql", lambda content: parser.parse(text(content)), _exprs()),
    Target("rule file", lambda content: rulefile.read_rules({"fuzz.yaml": text(content)}), _files("rules/*.yaml")),
    Target("kernel log", lambda content: [*map(kernel_log.read_line, text(content).splitlines())], (KERNEL,)),
    Target("nccl log", read_logs, (NCCL, KERNEL, DUMP)),
    Target("settings", in_file(loading.load, "hub.toml"), (SETTINGS,)),
    Target("prometheus.yml", in_file(prometheus_config.load, "prometheus.yml"), (SCRAPES,)),
    Target("routes", in_file(routing.load, "notify.toml"), (ROUTES,)),
    Target("policy", lambda content: policy.parse(text(content), where="fuzz"), _files("policies/*.toml")),
    Target(
        "targets",
        lambda content: discovery.read_groups(content, "fuzz"),
        (GROUPS,),
    ),
    Target("remote write", remote_write.decode, (WRITE,)),
    Target("archive", read_archive, (_tar(), _zip(), DUMP)),
    Target("recording", in_file(recording.read, "fuzz.wkr"), (RECORDING,)),
    Target("evidence", evidence_file.read, (_tar(),)),
)


def feed(target: Target, content: bytes) -> str:
    """What the target did with it that it must not do, or an empty text."""
    try:
        target.feed(content)
    except WatchkeeperError:
        return ""
    except Exception as error:  # Deliberately everything: that is what is looked for.
        return f"{type(error).__name__}: {error}"
    return ""


ODD = (
    b"\x00",
    b"\xff\xfe",
    b"\n",
    b"\r",
    b'"',
    b"{",
    b"}",
    b"\\",
    b"9" * 40,
    b"-",
    b"e999",
    b"\xc3",
    b"%s",
    b"[[",
    b"\t" * 8,
)


def mutate(content: bytes, rng: random.Random) -> bytes:
    """The same with a few pieces changed, cut, doubled or moved."""
    piece = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        at, length = rng.randint(0, len(piece)), min(rng.randint(0, 40), 4096)
        match rng.randrange(6):
            case 0:
                piece[at:at] = rng.choice(ODD)
            case 1:
                del piece[at : at + length]
            case 2 if piece:
                piece[min(at, len(piece) - 1)] = rng.randrange(256)
            case 3:
                piece[at:at] = piece[at : at + length] * rng.randint(1, 8)
            case 4:
                piece[at : at + length] = rng.randbytes(rng.randint(0, 8))
            case _:
                other = rng.randint(0, len(piece))
                piece[at:at] = piece[other : other + length]
    return bytes(piece)
