"""The agent on a real GPU: scrape time, CPU, memory, and the overhead of profiling for a running job.

    python bench/gpu/agent_bench.py [--json] [--seconds 60] [--parts tree cost …] [--out DIR]

Needs the standard library and nvidia-ml-py; torch for the overhead on a bf16 matmul, and cupy for the time from a
provoked Xid to its event. Part `tree` measures the whole agent with a stand-in of the hub, the others measure parts of
it. --out writes the JSON and the page to a folder. Every reference is measured in the same run.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    # Started as a file: the package is not installed on the GPU machine.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu import agent_tree
from watchkeeper.agent.gpus.gpu_page import GpuPage
from watchkeeper.agent.gpus.reader_link import ReaderLink
from watchkeeper.agent.gpus.reader_watch import ReaderLimits
from watchkeeper.agent.gpus.sampler import NvmlEvent, Sampler, SamplerSettings
from watchkeeper.kit import clock
from watchkeeper.model import fleet
from watchkeeper.readers.nvml import calls, choice, families, session

PARTS = ("tree", "cost", "reader", "matmul", "xid", "calls")
# A simple exporter in Python, with the fields of dcgm-exporter's default file.
NAIVE = """
import json, statistics, time, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
def scrape():
    u, m = n.nvmlDeviceGetUtilizationRates(h), n.nvmlDeviceGetMemoryInfo(h)
    values = [u.gpu, u.memory, m.used, m.free, n.nvmlDeviceGetTemperature(h, 0), n.nvmlDeviceGetPowerUsage(h),
        n.nvmlDeviceGetClockInfo(h, 1), n.nvmlDeviceGetClockInfo(h, 2), n.nvmlDeviceGetEncoderUtilization(h)[0],
        n.nvmlDeviceGetDecoderUtilization(h)[0], n.nvmlDeviceGetTotalEnergyConsumption(h),
        n.nvmlDeviceGetPcieReplayCounter(h), n.nvmlDeviceGetPcieThroughput(h, 0), n.nvmlDeviceGetPcieThroughput(h, 1),
        *n.nvmlDeviceGetRemappedRows(h), len(n.nvmlDeviceGetComputeRunningProcesses(h))]
    return "".join(f'naive_{i}{{gpu="0"}} {v}\\n' for i, v in enumerate(values))
took = []
for _ in range(60):
    start = time.perf_counter(); scrape(); took.append(time.perf_counter() - start); time.sleep(0.05)
took.sort()
rss = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmRSS"))
print(json.dumps({"p50_ms": 1e3 * statistics.median(took), "p99_ms": 1e3 * took[-1], "rss_mib": rss / 1024}))
"""
# Counts matmuls in time windows; each input line has the seconds of a window.
MATMUL = """
import sys, time, torch
a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
out = torch.empty_like(a)
for _ in range(200): torch.matmul(a, b, out=out)
torch.cuda.synchronize(); print("ready", flush=True)
for line in sys.stdin:
    seconds, count = float(line), 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(20): torch.matmul(a, b, out=out)
        torch.cuda.synchronize(); count += 20
    print(count / (time.perf_counter() - start), flush=True)
"""
XID_31 = """
import sys, time, cupy
kernel = cupy.RawKernel('extern "C" __global__ void touch(int* p) { *p = 1; }', "touch")
own = cupy.zeros(1, dtype=cupy.int32)
kernel((1,), (1,), (own,)); cupy.cuda.Device().synchronize()
print("ready", flush=True); sys.stdin.readline()
print(time.time(), flush=True)
kernel((1,), (1,), (cupy.uint64(0x7FFF00000000),))
try: cupy.cuda.Device().synchronize()
except Exception as error: print(type(error).__name__, file=sys.stderr)
"""


def percentiles(seconds: list[float], unit: float) -> dict[str, float]:
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {"p50": round(statistics.median(ordered) * unit, 4), "p99": round(p99 * unit, 4)}


def time_calls(step: Callable[[], object], times: int) -> list[float]:
    durations = []
    for _ in range(times):
        start = time.perf_counter()
        step()
        durations.append(time.perf_counter() - start)
    return durations


def memory_mib(pid: int | str) -> dict[str, float]:
    """Memory by kind: `file` is mapped from libraries and can be evicted, `anon` is allocated."""
    fields = {"VmRSS": "rss", "RssAnon": "anon", "RssFile": "file", "Pss": "pss"}
    mib_by_kind = {}
    for file in ("status", "smaps_rollup"):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in fields:
                mib_by_kind[fields[name]] = round(int(rest.split()[0]) / 1024, 1)
    return mib_by_kind


def cpu_seconds(pid: int | str) -> dict[str, float]:
    """CPU seconds of each thread, the oldest first; the second thread of the reader waits for events."""
    tasks = sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda task: int(task.name))
    return {task.name: int((task / "schedstat").read_text().split()[0]) / 1e9 for task in tasks}


def children() -> list[int]:
    return [int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]


@contextmanager
def running_sampler(
    limits: ReaderLimits, nvml_events: list[tuple[float, NvmlEvent]] | None = None
) -> Iterator[Sampler]:
    def record_event(event: NvmlEvent) -> None:
        if nvml_events is not None:
            nvml_events.append((time.time(), event))

    place = fleet.Place("bench", node=os.uname().nodename)
    sampler = Sampler(
        SamplerSettings(place, os.uname().nodename, limits=limits), clock.ScaledClock(), on_event=record_event
    )
    sampler.start()
    try:
        deadline = time.monotonic() + 60
        while not sampler.page():
            if time.monotonic() > deadline:
                raise SystemExit(f"no page after 60 s: {sampler.faults()}")
            time.sleep(0.02)
        yield sampler
    finally:
        sampler.stop()


def bench_reader() -> dict[str, Any]:
    """The time to open NVML and to read a GPU, as seen by the agent."""
    start = time.perf_counter()
    link = ReaderLink(choice.choose_families().families, events=True)
    poll = select.poll()
    poll.register(link.fileno(), select.POLLIN)

    def next_message() -> dict[str, Any]:
        while True:
            assert poll.poll(30_000), link.current_call()
            for message in link.read_messages():
                if "event" not in message:
                    return message

    def read(*cadences: str) -> dict[str, Any]:
        link.request_reading(0, cadences)
        return next_message()

    ready_message = next_message()
    open_seconds = time.perf_counter() - start
    first = time_calls(lambda: read("fast", "profile", "slow", "rare"), 1)
    numbers = {
        "hello": ready_message,
        "open_ms": round(open_seconds * 1e3, 1),
        "first_answer_ms": round(first[0] * 1e3, 1),
    }
    for name, cadences in (("fast", ["fast"]), ("profile", ["profile"]), ("slow", ["slow"]), ("rare", ["rare"])):
        numbers[f"{name}_ms"] = percentiles(time_calls(lambda c=cadences: read(*c), 5 if name == "rare" else 50), 1e3)
        time.sleep(0.2)
    link.abandon()
    link.wait_for_exit(5)
    return numbers


def bench_scrape(sampler: Sampler) -> dict[str, Any]:
    """The time to scrape a cached page, and to render a new one."""
    snapshot = sampler._snapshot
    never_stale = dict.fromkeys(families.Cadence, 1e9)
    page = GpuPage(choice.choose_families().families, hostname="n", fresh_seconds=never_stale)
    now = time.monotonic()
    gc.collect()
    return {
        "lines": len(sampler.page().splitlines()),
        "kept_page_us": percentiles(time_calls(sampler.page, 2000), 1e6),
        "written_anew_us": percentiles(time_calls(lambda: page.render(replace(snapshot), now), 2000), 1e6),
    }


def bench_cost(seconds: float) -> tuple[dict[str, Any], bytes]:
    """CPU and memory of the sampler and its reader at an interval of one second, with a scrape every second."""
    with running_sampler(ReaderLimits(interval_seconds=1.0)) as sampler:
        time.sleep(3)
        (reader,) = children()
        before = {"sampler": cpu_seconds("self"), "reader": cpu_seconds(reader)}
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            sampler.page()
            time.sleep(1.0)
        elapsed = time.monotonic() - start
        after = {"sampler": cpu_seconds("self"), "reader": cpu_seconds(reader)}
        cpu = {
            name: [round(100 * (used - before[name].get(task, 0.0)) / elapsed, 3) for task, used in threads.items()]
            for name, threads in after.items()
        }
        memory = {"sampler": memory_mib("self"), "reader": memory_mib(reader)}
        numbers = {
            "seconds": round(elapsed, 1),
            "cpu_percent": cpu | {"both": round(sum(sum(threads) for threads in cpu.values()), 3)},
            "memory_mib": memory,
            "scrape": bench_scrape(sampler),
            "faults": [fault.evidence for fault in sampler.faults()],
        }
        numbers["memory_mib"] = memory | {
            f"both_{kind}": round(sum(part[kind] for part in memory.values()), 1) for kind in ("rss", "pss")
        }
        return numbers, sampler.page()


def bench_calls() -> dict[str, Any]:
    """Microseconds of each NVML call of the plan, in this process; run this part last."""
    nvml_session = session.Session(session.load(), choice.choose_families().families, lambda _: None)
    nvml_session.read(0, list(families.Cadence))
    handle, nvml = nvml_session.gpus()[0].handle, nvml_session.nvml
    percentiles_by_call = {}
    for cadence in (families.Cadence.FAST, families.Cadence.SLOW, families.Cadence.RARE):
        for nvml_call in (*nvml_session._plan[cadence], *nvml_session._slice_plan[cadence]):
            if nvml_call.read is not None:
                call_function = nvml_call.read
                with suppress(nvml.NVMLError, calls.Unsupported):
                    percentiles_by_call[f"{cadence} {nvml_call.key}"] = percentiles(
                        time_calls(lambda a=call_function: a(nvml, handle), 9), 1e6
                    )
                continue
            for family in nvml_call.families:
                part = [int(family.part)]
                durations = time_calls(lambda p=part: nvml_session.nvml.nvmlDeviceGetFieldValues(handle, p), 9)
                percentiles_by_call[f"{cadence} field.{family.part}"] = percentiles(durations, 1e6)
    return dict(sorted(percentiles_by_call.items(), key=lambda row: -row[1]["p50"]))


def python(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def bench_matmul(pairs: int, window: float) -> dict[str, Any]:
    """Matmuls per second with and without the agent in turn, so that heat and clocks affect both equally."""
    with python(MATMUL) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        if job.stdout.readline().strip() != "ready":
            return {"skipped": "needs torch and a GPU"}

        def rate() -> float:
            job.stdin.write(f"{window}\n")
            return float(job.stdout.readline())

        rate()
        rates_without, rates_with, page = [], [], b""
        for _ in range(pairs):
            rates_without.append(rate())
            with running_sampler(ReaderLimits(interval_seconds=1.0)) as sampler:
                time.sleep(1.2)
                rates_with.append(rate())
                page = sampler.page()
        job.stdin.close()
    ratios = sorted(with_a / without_a for with_a, without_a in zip(rates_with, rates_without, strict=True))
    profiled = [line for line in page.decode().splitlines() if line.startswith("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{")]
    return {
        "tflops_without": round(statistics.median(rates_without) * 2 * 8192**3 / 1e12, 1),
        "tflops_with": round(statistics.median(rates_with) * 2 * 8192**3 / 1e12, 1),
        "slowdown_percent_median": round(100 * (1 - statistics.median(ratios)), 3),
        "slowdown_percent_range": [round(100 * (1 - ratios[-1]), 3), round(100 * (1 - ratios[0]), 3)],
        "pairs": pairs,
        "tensor_active": profiled[0].rpartition(" ")[2] if profiled else None,
    }


def bench_xid() -> dict[str, Any]:
    """The time from the launch of a kernel with an illegal access to the event in the agent."""
    facts: list[tuple[float, NvmlEvent]] = []
    with running_sampler(ReaderLimits(interval_seconds=1.0), facts) as sampler, python(XID_31) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        if job.stdout.readline().strip() != "ready":
            return {"skipped": "needs cupy and a GPU"}
        time.sleep(1.5)
        job.stdin.write("\n")
        job.stdin.close()
        launched_at = float(job.stdout.readline())
        deadline = time.time() + 10
        while not any(fact.kind == "xid" for _, fact in facts) and time.time() < deadline:
            time.sleep(0.005)
        job.wait()
        time.sleep(0.5)
        page = sampler.page().decode()
    xids = [(at, fact) for at, fact in facts if fact.kind == "xid"]
    return {
        "launch_to_event_ms": round((xids[0][0] - launched_at) * 1e3, 1) if xids else None,
        "events": [(fact.kind, fact.detail, round((at - launched_at) * 1e3, 1)) for at, fact in facts][:20],
        "on_page": [line for line in page.splitlines() if "_XID_ERRORS{" in line or "xid_errors_total{" in line],
    }


def table_lines(value: Any, name: str = "") -> Iterator[str]:
    """One line for each value, with its dotted name."""
    if isinstance(value, dict):
        for key, nested in value.items():
            yield from table_lines(nested, f"{name}.{key}" if name else key)
    else:
        yield f"{name:60} {value}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--window", type=float, default=4.0)
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--kmsg", default="/dev/kmsg", help="the kernel log that the agent follows")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    numbers: dict[str, Any] = {"python": sys.version.split()[0], "this_process_mib": memory_mib("self")}
    page = b""
    if "tree" in options.parts:
        numbers["tree"] = agent_tree.bench_tree(options.seconds, options.kmsg, XID_31)
    if "cost" in options.parts:
        numbers["agent"], page = bench_cost(options.seconds)
        naive = subprocess.run([sys.executable, "-c", NAIVE], capture_output=True, text=True, check=True)
        numbers["naive"] = json.loads(naive.stdout)
        scrape = numbers["agent"]["scrape"]["written_anew_us"]["p50"]
        numbers["naive_over_scrape"] = round(1e3 * numbers["naive"]["p50_ms"] / scrape, 1)
    if "reader" in options.parts:
        numbers["reader"] = bench_reader()
    if "matmul" in options.parts:
        numbers["matmul"] = bench_matmul(options.pairs, options.window)
    if "xid" in options.parts:
        numbers["xid"] = bench_xid()
    if "calls" in options.parts:
        numbers["calls_us"] = bench_calls()
    text = json.dumps(numbers, indent=1)
    print(text if options.json else "\n".join(table_lines(numbers)))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "agent_bench.json").write_text(text)
        (options.out / "page.txt").write_bytes(page)


if __name__ == "__main__":
    main()
