"""What Slurm writes, in every version's shape, is one thing to us; and rubbish is an error, not an empty cluster."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.support.paths import SHARED
from watchkeeper.errors import CollectError
from watchkeeper.readers.clusters import hostlist, slurm_records

RECORDINGS = SHARED / "corpus" / "recordings" / "slurm_json"
NODE_FILES = {"22.05": "sinfo.json", "24.11": "nodes.json", "26.05": "nodes.json"}
NODE_TEXT = """NodeName=n2 Arch=x86_64 CoresPerSocket=1
   Gres=gpu:h200:8(S:0-1)
   NodeAddr=10.0.0.2 NodeHostName=gpu-2 Port=6818 Version=20.11.9
   OS=Linux 5.4 #1 SMP
   State=MIXED+DRAIN* ThreadsPerCore=1
   Partitions=gpu,debug
   Reason=GPU 3 is lost [ada@2026-11-15T02:00:35]
"""
JOB_TEXT = """JobId=30214 ArrayJobId=30185 ArrayTaskId=28 JobName=sweep
   UserId=ada(1000) GroupId=ada(1000) Account=llm QOS=normal
   JobState=RUNNING Reason=None Dependency=(null)
   SubmitTime=2026-11-15T02:00:35 StartTime=2026-11-15T02:00:38 EndTime=Unknown
   Partition=gpu NodeList=n[1-2] NumNodes=2
     Nodes=n1 CPU_IDs=0-1 Mem=0 GRES=gpu:h200:2(IDX:0-1)
     Nodes=n2 CPU_IDs=0 Mem=0 GRES=gpu:h200:1(IDX:7)
"""


def recording(version: str, name: str) -> str:
    path = RECORDINGS / version / name
    if not path.exists():
        pytest.skip("the recordings are not beside this checkout")
    return path.read_text()


@pytest.mark.parametrize("version", NODE_FILES)
def test_nodes_of_every_version_have_the_same_facts(version: str) -> None:
    text = recording(version, NODE_FILES[version])
    nodes = {node.name: node for node in slurm_records.read_nodes_json(text, where="recording")}
    assert [nodes[name].gpus for name in ("n1", "n2", "n3")] == [8, 8, 8]
    assert [nodes[name].state_name for name in ("n1", "n2", "n3")] == ["mixed", "drained", "idle"]
    assert (nodes["n2"].reason, nodes["n2"].reason_user) == ("xid 79", "root")
    assert [nodes[name].is_schedulable for name in ("n1", "n2", "n3")] == [True, False, True]


@pytest.mark.parametrize("version", NODE_FILES)
def test_jobs_of_every_version_have_the_same_facts(version: str) -> None:
    text = recording(version, "squeue.json")
    job = next(job for job in slurm_records.read_jobs_json(text, where="recording") if job.is_running)
    assert (job.id, job.user, job.partition, job.nodes) == ("1", "root", "gpu", ("n1",))
    assert job.gpus_by_node == {"n1": tuple(range(job.gpus))}
    assert job.submitted_at is not None
    assert job.started_at is not None


def test_text_of_an_old_version_says_the_same_as_json() -> None:
    (node,) = slurm_records.read_nodes_text(NODE_TEXT)
    assert (node.state_name, node.gpus, node.reason, node.reason_user) == ("draining*", 8, "GPU 3 is lost", "ada")
    assert (node.address, node.hostname, node.partitions) == ("10.0.0.2", "gpu-2", ("gpu", "debug"))
    assert node.is_ready is False
    (job,) = slurm_records.read_jobs_text(JOB_TEXT)
    assert (job.id, job.array, job.user, job.account, job.gpus) == ("30214", "30185_28", "ada", "llm", 3)
    assert job.gpus_by_node == {"n1": (0, 1), "n2": (7,)}


@pytest.mark.parametrize("between", [" ", "\n   ", "\n   UserId=root(0) GroupId=root(0)\n     "])
def test_a_jobs_name_cannot_claim_anothers_gpus(between: str) -> None:
    claim = f"x{between}Nodes=n9 CPU_IDs=0 Mem=0 GRES=gpu:h200:8(IDX:0-7){between}Account=boss"
    jobs = slurm_records.read_jobs_text(JOB_TEXT.replace("JobName=sweep", f"JobName={claim}"))
    assert [(job.account, dict(job.gpus_by_node)) for job in jobs if job.gpus_by_node] == [
        ("llm", {"n1": (0, 1), "n2": (7,)})
    ]


def test_an_answer_about_one_job_that_holds_another_record_is_not_believed() -> None:
    assert slurm_records.read_job_text(JOB_TEXT, "30214") == slurm_records.read_jobs_text(JOB_TEXT)[0]
    plain = JOB_TEXT.replace("ArrayJobId=30185 ArrayTaskId=28 ", "")
    forged = JOB_TEXT.replace("IDX:0-1", "IDX:0-7").replace("ArrayJobId=30185 ArrayTaskId=28 ", "")
    assert slurm_records.read_job_text(plain.replace("sweep", f"x\n{forged}\nJobId=1 JobName=y"), "30214") is None


@pytest.mark.parametrize("rubbish", ["", "slurm_load_jobs error: Unable to contact", '{"jobs": 3}', "[]", '{"jobs": ['])
def test_an_answer_that_is_no_list_of_jobs_is_an_error_and_not_an_empty_queue(rubbish: str) -> None:
    with pytest.raises(CollectError):
        slurm_records.read_jobs_json(rubbish, where="squeue")


def test_a_shape_that_nobody_has_seen_yet_costs_only_what_it_hides() -> None:
    odd = [{"job_id": {"value": 3}}, "text", {"job_id": 5, "job_state": {"current": "RUNNING"}, "gres_detail": None}]
    text = json.dumps({"jobs": [*odd, {"job_id": "7", "job_state": "PENDING"}]})
    jobs = slurm_records.read_jobs_json(text, where="squeue")
    assert [(job.id, job.is_pending, job.gpus) for job in jobs] == [("5", False, 0), ("7", True, 0)]


def test_a_warning_before_and_after_the_json_does_not_hide_it() -> None:
    text = 'squeue: error: plugin old\n{"jobs": []}\nsqueue: warning: late\n'
    assert slurm_records.read_jobs_json(text, where="squeue") == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("gpu:h200:8(S:0-1)", 8),
        ("gpu:8", 8),
        ("gpu:a100:4,gpu:3g.20gb:2(S:1)", 6),
        ("gres:gpu:2", 2),
        ("gres/gpu", 1),
        ("cpu=1,gres/gpu=8,gres/gpu:h200=8", 8),
        ("shard:32", None),
        ("(null)", None),
        ("", None),
    ],
)
def test_gpus_are_counted_in_every_way_slurm_writes_them(text: str, count: int | None) -> None:
    assert slurm_records.gpu_count(text) == count


def test_a_node_hangs_on_its_lowest_switch() -> None:
    lines = ["SwitchName=s1 Level=0 Nodes=n[1-2]", "SwitchName=top Level=1 Nodes=n[1-3] Switches=s[1-2]"]
    text = "\n".join([*lines, "# SwitchName=x Nodes=n9"])
    assert slurm_records.read_topology_leaves(text) == {"n1": "s1", "n2": "s1"}


def test_limits_are_those_of_whole_accounts() -> None:
    text = "root||\nllm||cpu=100,gres/gpu=12\nllm|ada|gres/gpu=2\nchat||cpu=5\nbroken\n"
    assert slurm_records.read_limits_text(text) == [slurm_records.AccountLimit("llm", 12)]


def test_a_hostlist_expands_with_its_zeros_and_knows_its_numbers() -> None:
    assert hostlist.expand("gpu-r[01-02]-[1,3],login1") == [
        "gpu-r01-1",
        "gpu-r01-3",
        "gpu-r02-1",
        "gpu-r02-3",
        "login1",
    ]
    assert hostlist.expand_parts("r[07]-[2]")[0] == hostlist.HostlistName("r07-2", ("07", "2"))


@pytest.mark.parametrize("text", ["n[1-", "n]1[", "n[a-c]", "n[5-2]", "n[1-999999999]", "n[1-999][1-999]", "n[]"])
def test_a_hostlist_that_is_none_or_too_long_is_refused(text: str) -> None:
    with pytest.raises(hostlist.BadHostlist):
        hostlist.expand(text)


@given(some.text(max_size=60))
def test_no_text_breaks_the_readers(text: str) -> None:
    for read in (slurm_records.read_nodes_text, slurm_records.read_jobs_text, slurm_records.read_limits_text):
        assert isinstance(read(text), list)
    slurm_records.read_topology_leaves(text)
    slurm_records.gpu_count(text)
    slurm_records.gpu_indexes(text)


@given(
    some.recursive(some.none() | some.booleans() | some.integers() | some.text(max_size=8), some.lists, max_leaves=5)
)
def test_no_json_breaks_the_readers(value: object) -> None:
    keys = ("job_id", "job_state", "gres_detail", "nodes", "job_resources", "submit_time", "tres_per_node")
    job = dict.fromkeys(keys, value) | {"job_id": 1}
    node = dict.fromkeys(("state", "gres", "partitions", "features", "reason"), value) | {"name": "n1"}
    assert slurm_records.read_jobs_json(json.dumps({"jobs": [job]}), where="x")[0].id == "1"
    assert slurm_records.read_nodes_json(json.dumps({"nodes": [node]}), where="x")[0].name == "n1"
