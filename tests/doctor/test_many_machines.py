"""Outputs of several machines in one file, and objects of a cluster: which of them it was."""

from __future__ import annotations

import json
import time

import pytest

from tests.doctor.asking import ask, causes

MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"
FINE = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-555555555555)"
LOST = "NVRM: Xid (PCI:0000:c1:00): 79, pid=1234, GPU has fallen off the bus."
RULE = "-" * 15
GATHERED = {
    "ansible": f"gpu06 | CHANGED | rc=0 >>\n{FINE}\ngpu07 | FAILED | rc=18 >>\n{MISMATCH}\n",
    "clush": f"{RULE}\ngpu[05-06] (2)\n{RULE}\n{FINE}\n{RULE}\ngpu07\n{RULE}\n{MISMATCH}\n",
    "a loop": f"===== gpu06 =====\n{FINE}\n===== gpu07 =====\n{MISMATCH}\n===== gpu08 =====\n{FINE}\n",
    "salt": f"gpu06:\n    {FINE}\ngpu07:\n    {MISMATCH}\n",
    "pssh": f"[1] 05:36:05 [SUCCESS] gpu06\n{FINE}\n[2] 05:36:06 [FAILURE] gpu07 Exited with 18\n{MISMATCH}\n",
    "host lines": f"Host: gpu06\n{FINE}\nHost: gpu07\n{MISMATCH}\nHost: gpu08\n{FINE}\n",
    "ansible, one line": f'fatal: [gpu07]: FAILED! => {{"rc": 18, "stdout": "{MISMATCH}"}}\n',
    "said to be a node": f"### node: gpu07\n{MISMATCH}\n",
    "ssh": f"[ana@login ~]$ ssh -p 22 root@gpu07 nvidia-smi\n{MISMATCH}\n",
    "its own log": f"root@gpu07:~# grep -i nvml /var/log/syslog\n{MISMATCH}\n",
    "klog": f'E0810 05:36:05.1 1 main.go:9] "failed" err="{MISMATCH}" pod="team-a/trainer-0" node="gpu07"\n',
}
NODE = f"""apiVersion: v1
items:
- apiVersion: v1
  kind: Node
  metadata:
    labels:
      name: other
    name: gpu07
  status:
    conditions:
    - message: 'kernel: {LOST}'
      type: GpuHealthy
- apiVersion: v1
  kind: Node
  metadata:
    name: gpu08
kind: List
"""
EVENTS = f"""Events:
  Type     Reason     Age   From               Message
  ----     ------     ----  ----               -------
  Normal   Scheduled  21s   default-scheduler  Successfully assigned team-a/trainer-0 to gpu07
  Warning  Failed     5s    kubelet            Error: {MISMATCH}
"""
BLOCK = """torch.AcceleratorError: CUDA error: an illegal memory access was encountered
train.py FAILED
Failures:
[1]:
  host      : gpu08
  rank      : 9 (local_rank: 1)
Root Cause (first observed failure):
[0]:
  time      : 2026-08-10_05:36:05
  host      : gpu07
  rank      : 3 (local_rank: 3)
"""


@pytest.mark.parametrize("tool", GATHERED)
def test_the_machine_is_the_one_above_the_line(tool: str) -> None:
    answer = ask(GATHERED[tool])
    assert causes(answer)[:1] == ["driver_library_mismatch"]
    assert answer.findings[0].where["node"] == "gpu07"


@pytest.mark.parametrize("heading", ["=== rank3 ===", "=== gpu3 ===", "## v1.2.3", "--- step10 ---", "== H100 =="])
def test_not_every_heading_between_rules_is_a_node(heading: str) -> None:
    assert "node" not in ask(f"{heading}\n{MISMATCH}\n").findings[0].where


@pytest.mark.parametrize("text", [NODE, NODE.replace("kind: Node", "kind: Pod").replace("status", "spec")])
def test_what_stands_inside_an_object_is_about_that_object(text: str) -> None:
    where = ask(text).findings[0].where
    assert "gpu07" in (where.get("node"), where.get("pod"))


def test_an_object_in_json_names_its_node_too() -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "trainer-0", "ownerReferences": [{"apiVersion": "batch/v1", "name": "trainer"}]},
        "spec": {"nodeName": "gpu07"},
        "status": {"message": LOST},
    }
    where = ask(json.dumps(pod, indent=2)).findings[0].where
    assert (where["pod"], where["node"]) == ("trainer-0", "gpu07")


def test_the_events_of_a_pod_say_where_it_was_placed() -> None:
    where = ask(EVENTS).findings[0].where
    assert (where["pod"], where["namespace"], where["node"]) == ("trainer-0", "team-a", "gpu07")


def test_an_error_without_a_rank_is_that_of_the_rank_which_torchrun_saw_failing_first() -> None:
    where = ask(BLOCK).findings[0].where
    assert (where["rank"], where["node"]) == (3, "gpu07")


def test_an_error_whose_rank_is_named_keeps_it() -> None:
    assert ask(f"[rank5]: {BLOCK}").findings[0].where["rank"] == 5


RANKED = {
    "[trainer3]:Traceback (most recent call last):\n[trainer3]:{error}\n": 3,
    "gpu07 | rank 13 | 2026-08-10 05:36:05 | ERROR | {error}\n": 13,
    "[gpu07:rank 14] {error}\n": 14,
    "==> logs/rank_0.log <==\nstep 1\n==> logs/rank_9.log <==\n{error}\n": 9,
}


@pytest.mark.parametrize("text", RANKED)
def test_the_rank_is_read_from_what_a_launcher_or_tail_puts_before_its_lines(text: str) -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    answer = ask(text.replace("{error}", error))
    assert (causes(answer)[:1], answer.findings[0].where["rank"]) == (["cuda_oom"], RANKED[text])


def test_a_label_with_a_zero_before_it_is_the_same_task() -> None:
    lines = ("07: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "00: step 1")
    answer = ask("\n".join(lines) + "\nsrun: error: gpu07: task 7: Exited with exit code 1\n")
    assert (answer.findings[0].where["rank"], answer.findings[0].where["node"]) == (7, "gpu07")


def test_an_event_is_about_the_object_that_it_names() -> None:
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": {"kind": "Node", "name": "gpu07"},
        "message": "System OOM encountered, victim process: python3, pid: 1822",
    }
    assert ask(json.dumps(event, indent=2)).findings[0].where["node"] == "gpu07"


def test_the_node_that_ray_lost_is_named_and_not_the_one_that_says_so() -> None:
    line = f"The node with node id: {'a' * 56} and address: 10.0.0.7 and node name: 10.0.0.7 has been marked dead"
    answer = ask(json.dumps({"host_name": "head-1", "message": line}))
    assert (causes(answer)[:1], answer.findings[0].where["node"]) == (["node_down"], "10.0.0.7")


@pytest.mark.parametrize(
    "heading",
    [
        "Host: api1.example.org\nAccept: */*",
        "eth0:\n    mtu 1500\neth1:",
        '{"source": "train2.py", "message": "started"}',
        "[rank3]: 2026-08-10 05:36:05,123 trainer loss: 2.1",
    ],
)
def test_a_name_that_only_looks_like_a_node_is_not_the_place(heading: str) -> None:
    assert "node" not in ask(f"{heading}\n    {MISMATCH}\n").findings[0].where
    assert "node" not in ask(f"{heading} {MISMATCH}\n").findings[0].where


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    [
        "  Normal  Scheduled  1s  s  Successfully assigned a/b to c\n",
        "_HOSTNAME=a\nMESSAGE=b\n",
        "- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: x\n",
        "RayActorError: x\n  a: b\n",
        "gpu1:\n    x\n",
        "==== gpu1 ====\n",
    ],
)
def test_headings_without_end_take_a_time_that_grows_with_the_text_alone(piece: str) -> None:
    begun = time.thread_time()
    ask(piece * 20_000)
    # A second on a slow machine; what looked at all lines for each heading took a minute.
    assert time.thread_time() - begun < 10
