"""Series of jobs and their ranks, for boards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from watchkeeper.diagnose import evidence
from watchkeeper.model import events, fleet
from watchkeeper.model.samples import Sample
from watchkeeper.query import embedded
from watchkeeper.rules import series_notation
from watchkeeper.store.head import head
from watchkeeper.workloads import board, report

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
SLURM = 'cluster="c",workload_kind="slurm_job",job_name="4711"'
SERIES: Mapping[str, float] = {
    f'watchkeeper:job_gpus:sum{{{SLURM},team="vision",user="ada",modelName="NVIDIA H100 80GB HBM3",pool="p"}}': 4,
    f"watchkeeper:job_nodes:count{{{SLURM}}}": 1,
    f'watchkeeper:job_use:ratio{{of="active",{SLURM}}}': 0.8,
    f'watchkeeper:job_use:ratio{{of="tensor",{SLURM}}}': 0.5,
    f'watchkeeper:job_use:ratio{{of="memory",{SLURM}}}': 0.7,
    f'watchkeeper:job_training:group{{{SLURM},training_job="pretrain"}}': 1,
    'watchkeeper:training_last_step_age:seconds{cluster="c",job_name="pretrain"}': 3,
    'training_world_size{cluster="c",job_name="pretrain"}': 4,
    'watchkeeper:job_gpus:sum{cluster="c",workload_kind="pod",namespace="web",job_name="chat",team="web"}': 2,
    'watchkeeper:job_use:ratio{of="active",cluster="c",workload_kind="pod",namespace="web",job_name="chat"}': 0.0,
    'training_world_size{cluster="c",job_name="alone"}': 2,
    'watchkeeper:training_last_step_age:seconds{cluster="c",job_name="alone"}': 900,
    'ALERTS{alertname="TrainingJobStalled",alertstate="firing",cluster="c",job_name="alone"}': 1,
}
RANK = 'cluster="c",job_name="pretrain"'
RANKS: Mapping[str, float] = {
    row: value
    for rank in range(4)
    for uuid in [f"GPU-{rank}"]
    for row, value in {
        f'watchkeeper:job_gpu:share{{{SLURM},Hostname="n1",UUID="{uuid}"}}': 1,
        f'training_rank_info{{{RANK},rank="{rank}",Hostname="n1",gpu="{rank}",UUID="{uuid}"}}': 1,
        f'training_last_step_timestamp_seconds{{cluster="c",job_name="pretrain",rank="{rank}"}}': NOW.timestamp() - 3,
        f'training_step_compute_seconds{{cluster="c",job_name="pretrain",rank="{rank}"}}': 1.2 if rank == 2 else 1.0,
        f'DCGM_FI_PROF_SM_ACTIVE{{cluster="c",Hostname="n1",UUID="{uuid}",gpu="{rank}"}}': 0.8,
        f'DCGM_FI_DEV_GPU_UTIL{{cluster="c",Hostname="n1",UUID="{uuid}",gpu="{rank}"}}': 98,
    }.items()
}
SLOW = {f'watchkeeper:training_rank_slow:ratio{{{RANK},rank="2"}}': 0.2}


def engine(
    *several: Mapping[str, float], before: Mapping[str, float] | None = None, earlier_seconds: int = 60
) -> embedded.EmbeddedEngine:
    """Series with one value each, of a second ago; `before` has values of a minute earlier."""
    made = embedded.EmbeddedEngine(head.Head())
    at = round(NOW.timestamp() * 1000) - 1000
    made.appender.append(
        [
            Sample(series_notation.parse_labels(name), at - 1000 * earlier_seconds, value)
            for name, value in (before or {}).items()
        ]
    )
    made.appender.append(
        [Sample(series_notation.parse_labels(name), at, value) for rows in several for name, value in rows.items()]
    )
    return made


def report_inputs(job_board: board.JobBoard, id: str, happened: Iterable[events.Event] = ()) -> report.JobReportInputs:
    key = next(key for key in job_board.training_names if key.id == id)
    name, facts, is_suspect = job_board.training_names[key], job_board.facts[key], key in job_board.suspects
    return report.JobReportInputs(
        job_board.find_line(key), key, name, facts, is_suspect, (), tuple(happened), str, evidence.cause_of
    )


def xid(uuid: str, code: int) -> events.Event:
    place = fleet.Place("c", node="n1", gpu=uuid)
    at = NOW - timedelta(minutes=3)
    return events.Event(f"c/n1/b/k/{code}", events.EventKind.XID, code, place, at, text=f"Xid {code}")
