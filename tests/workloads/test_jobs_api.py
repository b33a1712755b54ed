"""Jobs over a real socket, and what the command line prints of them."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Iterator, Mapping

import pytest
from click.testing import CliRunner, Result

from tests.web import stories
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from tests.workloads.boards import RANKS, SERIES, SLOW
from watchkeeper.cli.fleet import explain as explain_command
from watchkeeper.cli.fleet import jobs as jobs_command
from watchkeeper.kit import clock, wire
from watchkeeper.model import jobs
from watchkeeper.model.samples import Sample
from watchkeeper.query import embedded
from watchkeeper.rules import series_notation
from watchkeeper.store.head import head
from watchkeeper.workloads import board

MODEL = 'cluster="c",model_name="chat"'
SERVED = {
    f"watchkeeper:inference_replicas:count{{{MODEL}}}": 2.0,
    f'inference_requests_waiting{{{MODEL},instance="a"}}': 60.0,
}
UNMAPPED = {"jobs": 1, "gpus": 2}


@pytest.fixture
def site() -> Iterator[Site]:
    with site_with({**SERIES, **RANKS, **SLOW, **SERVED}) as running:
        yield running


@contextlib.contextmanager
def site_with(series: Mapping[str, float], hub: SmallHub | None = None) -> Iterator[Site]:
    """A hub that knows these series."""
    hub = hub or SmallHub()
    engine = embedded.EmbeddedEngine(head.Head())
    at, own = clock.to_ms(hub.clock.now()) - 1000, f'cluster="{hub.settings.fleet.cluster}"'
    rows = {name.replace('cluster="c"', own): value for name, value in series.items()}
    engine.appender.append([Sample(series_notation.parse_labels(name), at, value) for name, value in rows.items()])
    hub.engine = engine
    with serving(hub) as running:
        yield running


def run(site: Site, *arguments: str) -> Result:
    return CliRunner().invoke(jobs_command.command, [*arguments, "--hub", site.url])


def test_a_list_has_every_field_that_the_console_builds_on(site: Site) -> None:
    answer = site.ask("/api/jobs").json
    assert (answer["ok"], answer["total"], answer["unmapped"], answer["problems"]) == (True, 3, UNMAPPED, [])
    assert set(answer["jobs"][0]) == set(jobs.JobLine.__dataclass_fields__)
    assert [job["id"] for job in answer["jobs"]] == ["alone", "4711", "web/chat"]


def test_jobs_without_recorded_gpus_are_not_unmapped() -> None:
    with site_with({'training_world_size{cluster="c",job_name="llm",rank="0"}': 4.0, **RANKS}) as early:
        answer = early.ask("/api/jobs").json
        printed = run(early).output
    assert (answer["total"], answer["unmapped"], answer["problems"]) == (
        1,
        {"jobs": 0, "gpus": 0},
        [board.NO_HOLDERS_YET],
    )
    assert "Unmapped" not in printed
    assert board.NO_HOLDERS_YET in printed


def test_filters_and_limits_are_kept_and_wrong_ones_refused(site: Site) -> None:
    assert [job["id"] for job in site.ask("/api/jobs?team=vision").json["jobs"]] == ["4711"]
    assert [job["id"] for job in site.ask("/api/jobs?team=unmapped").json["jobs"]] == ["alone"]
    assert site.ask("/api/jobs?state=stalled").json["total"] == 1
    assert [len(site.ask("/api/jobs?limit=1").json["jobs"]), site.ask("/api/jobs?limit=1").json["total"]] == [1, 3]
    for wrong in ("state=happy", "limit=0", "limit=99999", "limit=x"):
        assert site.ask(f"/api/jobs?{wrong}").status == 400


def test_one_job_is_found_by_its_id_and_by_the_name_it_gives_itself(site: Site) -> None:
    for id in ("4711", "pretrain"):
        answer = site.ask(f"/api/jobs/{id}").json
        assert answer["job"]["id"] == "4711"
        assert set(answer) == {"ok", *wire.field_names(jobs.JobReport)}
    assert site.ask("/api/jobs/web/chat").json["job"]["name"] == "chat"
    assert site.ask("/api/jobs/missing").status == 404


def test_the_table_names_what_is_wrong_and_the_exit_code_says_that_something_is(site: Site) -> None:
    result = run(site)
    assert result.exit_code == 1
    assert result.output.splitlines()[1].split()[:3] == ["alone", "unmapped", "stalled"]
    assert (
        "Unmapped: 1 job with 2 GPUs without a team. Set it in the inventory file (`fleet.inventory`)" in result.output
    )
    rows = list(csv.DictReader(io.StringIO(run(site, "--csv").stdout)))
    assert [(row["id"], row["used"]) for row in rows] == [("alone", ""), ("4711", "0.8"), ("web/chat", "0.0")]
    assert json.loads(run(site, "--json").stdout)["total"] == 3


def test_a_report_in_words_has_the_rank_its_gpu_and_the_fix(site: Site) -> None:
    output = run(site, "4711").output
    assert "4711 (pretrain): slow; 4 GPUs on 1 node" in output
    assert "rank 2 on n1 computes 20% longer than the others at each step (3 working, 1 slow)" in output
    assert "fix        Check rank 2 on n1, GPU 2" in output
    table = output[output.index("  rank  ") :].splitlines()
    assert table[1].split()[:3] == ["2", "n1", "2"]


def test_explaining_a_job_ends_with_its_report(site: Site) -> None:
    result = CliRunner().invoke(explain_command.command, ["job", "pretrain", "--hub", site.url])
    assert "goodput" in result.output, result.output


def test_a_slurm_job_is_explained_by_what_its_ranks_say_under_another_name(site: Site) -> None:
    explained = site.ask("/api/explain/job/4711").json["explained"]
    assert ("ranks", "3 of 4 compute about 1 s per step") in [
        (line["name"], line["text"]) for line in explained["lines"]
    ]
    assert (explained["subject"], explained["cause"]) == ("4711", "nccl_timeout_straggler")


def test_a_job_without_a_cause_is_explained_in_the_words_of_its_report() -> None:
    idle = {f'DCGM_FI_DEV_GPU_UTIL{{cluster="c",Hostname="n1",UUID="GPU-{at}",gpu="{at}"}}': 100.0 for at in range(4)}
    spins = {row: 0.1 if "SM_ACTIVE" in row else value for row, value in {**RANKS, **idle}.items()}
    late = {row: 0.0 if "GPU-2" in row and "DCGM" in row else value for row, value in spins.items()}
    mute = {row: value for row, value in late.items() if not row.startswith("training_")}
    alone = {row: value for row, value in SERIES.items() if "training" not in row}
    with site_with({**alone, **mute}) as site:
        headline = site.ask("/api/explain/job/4711").json["explained"]["headline"]
        why = site.ask("/api/jobs/4711").json["why"]
    assert why == "GPU 2 on n1 is idle while 3 of 4 GPUs spin in a collective (3 waiting, 1 idle)"
    assert headline.endswith(why)


def test_a_grave_incident_of_its_node_is_the_answer_about_a_job() -> None:
    hub = SmallHub()
    stories.lose_gpu(hub)
    pod = 'cluster="c",workload_kind="pod",namespace="research",job_name="llm-70b"'
    with site_with(
        {f"watchkeeper:job_gpus:sum{{{pod}}}": 8.0, f"watchkeeper:job_nodes:count{{{pod}}}": 1.0}, hub
    ) as site:
        told_about = site.ask("/api/explain/job/research/llm-70b").json["explained"]
    assert told_about["headline"].endswith("GPU 3 on gpu-r01-02 fell off the bus (INC-1)")
    assert told_about["cause"] == "gpu_fell_off_bus"


def test_the_page_the_report_and_explain_begin_with_the_same_sentence(site: Site) -> None:
    for id in ("4711", "alone", "web/chat"):
        decided = site.ask(f"/api/jobs/{id}").json["verdict"]
        explained = site.ask(f"/api/explain/job/{id}").json["explained"]
        assert decided["text"]
        assert explained["headline"].startswith(decided["text"])
        assert decided["because"] in explained["headline"]
        assert run(site, id).output.startswith(f"{id}: {decided['text']}")
    slow = site.ask("/api/jobs/4711").json
    assert (slow["verdict"]["status"], slow["verdict"]["cause"]) == ("wrong", "nccl_timeout_straggler")
    assert slow["job"]["state"] == "slow"


def test_a_pending_pod_is_explained_with_its_incident_everywhere() -> None:
    hub = SmallHub()
    stories.keep_waiting(hub, pod="ml/big-0")
    with site_with(
        {'watchkeeper:pending_gpu_pods:requests{cluster="c",namespace="ml",pod="big-0"}': 64.0}, hub
    ) as site:
        [line] = site.ask("/api/jobs").json["jobs"]
        shown = run(site, "ml/big").output
        by_pod, by_name, by_job = (
            CliRunner().invoke(explain_command.command, [*words, "--hub", site.url])
            for words in (("pod", "ml/big-0"), ("pod", "big-0"), ("job", "ml/big-0"))
        )
        assert site.ask("/api/explain/pod/missing").status == 404
    assert (line["id"], line["state"], line["incidents"]) == ("ml/big", "pending", ["INC-4"])
    assert "waits for 64 GPUs" in shown
    assert "INC-4" in shown
    for answer in (by_pod, by_name, by_job):
        assert "Pod ml/big-0 waits for free GPUs (INC-4)" in answer.output
        assert "cause     insufficient_gpu_capacity" in answer.output
        assert "action    Ask for fewer GPUs" in answer.output
        assert answer.exit_code == 1


def test_a_name_that_pods_of_two_namespaces_have_is_not_guessed() -> None:
    series = {f'kube_pod_status_phase{{cluster="c",namespace="{name}",pod="a",phase="Pending"}}': 1.0 for name in "xy"}
    with site_with(series) as site:
        reply = site.ask("/api/explain/pod/a")
    assert (reply.status, reply.json["error"]) == (400, "2 namespaces have a pod a; name one of them: x, y")


def test_replicas_are_advised_and_one_model_s_past_is_played(site: Site) -> None:
    assert "chat   2         6            60 requests wait" in run(site, "replicas").output
    assert site.ask("/api/replicas?model=chat&window=1h").json["replicas"][0]["wanted"] == 6
    assert site.ask("/api/replicas?model=missing").status == 404
    for wrong in ("window=soon", "window=1s", "window=30d"):
        assert site.ask(f"/api/replicas?model=chat&{wrong}").status == 400
