"""The Slurm driver on a real Slurm: our drains are marked and resumed, those of others are left alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.clusters.slurm_cluster import Cluster, until
from watchkeeper.config.settings import RunningJobs
from watchkeeper.errors import ActionFailed, ActionRefused
from watchkeeper.model.actions import Action, ActionId, ActionKind
from watchkeeper.model.fleet import Place
from watchkeeper.model.incidents import IncidentId
from watchkeeper.remediate.drivers.slurm import SlurmDriver

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(240)]
CORDON, DRAIN, UNCORDON, RESTART = ActionKind.CORDON, ActionKind.DRAIN, ActionKind.UNCORDON, ActionKind.RESTART_APP
WARN, RECLAIM = ActionKind.WARN_OWNER, ActionKind.RECLAIM
PLACE = Place("main", node="n1")
MARK = "watchkeeper:I-7/1-cordon"


@pytest.fixture
def cluster(slurm: Cluster) -> Iterator[Cluster]:
    yield slurm
    slurm.cancel_all()
    until(lambda: set(states(slurm)) == {"idle"})


@pytest.fixture
def driver(cluster: Cluster) -> SlurmDriver:
    return SlurmDriver(environment={"SLURM_CONF": cluster.environment["SLURM_CONF"]})


def action(kind: ActionKind, node: str = "n1", *, incident: str = "I-7", **arguments: str) -> Action:
    place = Place("main", node=node)
    return Action(ActionId(f"1-{kind}"), kind, place, IncidentId(incident), "GPU 3 fell off the bus", arguments)


def states(cluster: Cluster) -> list[str]:
    """A node that was resumed is `idle*` until its slurmd has answered."""
    return cluster.ask("sinfo", "-h", "-N", "-o", "%T").split()


def start(cluster: Cluster, *options: str) -> str:
    job = cluster.submit("-w", "n1", "--gres=gpu:1", "--mem=10", *options)
    until(lambda: cluster.ask("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING")
    return job


def test_a_drain_carries_our_reason_and_is_resumed(cluster: Cluster, driver: SlurmDriver) -> None:
    assert driver.perform(action(CORDON)).text == f"drained n1 with the reason {MARK}"
    observed = driver.observe(PLACE)
    assert (observed.is_schedulable, observed.cordoned_by, observed.maintained_by) == (False, MARK, ())
    assert driver.perform(action(CORDON)).text == f"n1 is already drained by {MARK}"
    assert driver.perform(action(DRAIN)).is_complete
    driver.perform(action(UNCORDON))
    until(lambda: driver.observe(PLACE).is_schedulable)
    assert driver.observe(PLACE).cordoned_by is None
    assert driver.perform(action(UNCORDON)).text == "n1 has no drain of Watchkeeper's"
    assert states(cluster) == ["idle"] * 3


def test_what_is_described_is_what_a_person_would_type(cluster: Cluster, driver: SlurmDriver) -> None:
    assert driver.describe(action(CORDON)) == f"scontrol update NodeName=n1 State=DRAIN Reason={MARK}"
    cluster.ask(*driver.describe(action(CORDON)).split())
    assert driver.observe(PLACE).cordoned_by == MARK
    assert driver.describe(action(DRAIN, running_jobs="requeue")).endswith("scontrol requeue JOB for each job")


def test_a_running_job_is_waited_for_and_nothing_is_done_to_it(cluster: Cluster, driver: SlurmDriver) -> None:
    job = start(cluster)
    driver.perform(action(CORDON))
    done = driver.perform(action(DRAIN))
    assert (done.is_complete, done.waits_for) == (False, (f"job {job} of root: running",))
    assert driver.observe(PLACE).workloads == (job,)
    cluster.ask("scancel", job)
    until(lambda: driver.perform(action(DRAIN)).is_complete)


def test_a_running_job_is_requeued_where_the_policy_says_so(cluster: Cluster, driver: SlurmDriver) -> None:
    job, fixed = start(cluster), start(cluster, "--no-requeue")
    driver.perform(action(CORDON))
    drain = action(DRAIN, running_jobs="requeue")
    waits = driver.perform(drain).waits_for
    assert any(blocker.startswith(f"job {fixed} of root: running, cannot be requeued: ") for blocker in waits)
    until(lambda: "PENDING" in cluster.ask("squeue", "-h", "-j", job, "-o", "%T"))
    until(lambda: not any(f"job {job} " in blocker for blocker in driver.perform(drain).waits_for))
    cluster.ask("scancel", fixed)
    until(lambda: driver.perform(drain).is_complete)


def test_a_job_is_restarted_by_one_requeue(cluster: Cluster, driver: SlurmDriver) -> None:
    job = start(cluster)
    assert driver.perform(action(RESTART, jobs=job)).text == "requeued 1 jobs, 1 remaining"
    again = action(RESTART, jobs=job, before="2020-01-01T00:00:00+00:00")
    assert driver.perform(again).is_complete
    with pytest.raises(ActionRefused, match="the jobs of this step are unknown"):
        driver.perform(action(RESTART))


def test_a_drain_of_another_user_is_neither_taken_over_nor_resumed(cluster: Cluster, driver: SlurmDriver) -> None:
    cluster.ask("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=disk swap, ticket 12")
    observed = driver.observe(PLACE)
    assert (observed.cordoned_by, observed.maintained_by) == (None, ("root (disk swap, ticket 12)",))
    with pytest.raises(ActionRefused, match="it is maintained by root"):
        driver.perform(action(CORDON))
    with pytest.raises(ActionRefused, match="the drain is not Watchkeeper's"):
        driver.perform(action(UNCORDON))
    assert "disk swap" in cluster.ask("scontrol", "show", "node", "n1")


def test_a_drain_of_our_own_health_check_becomes_the_drain_of_the_repair(cluster: Cluster, driver: SlurmDriver) -> None:
    reason = "watchkeeper: unhealthy: GPU 3 does not answer"
    cluster.ask("scontrol", "update", "NodeName=n1", "State=DRAIN", f"Reason={reason}")
    observed = driver.observe(PLACE)
    assert (observed.cordoned_by, observed.maintained_by) == (None, ())
    cordon = action(CORDON)
    driver.perform(cordon)
    assert driver.observe(PLACE).cordoned_by == cordon.mark
    assert f"{cordon.mark} (was: {reason})" in cluster.ask("scontrol", "show", "node", "n1")
    driver.perform(action(UNCORDON))
    until(lambda: driver.observe(PLACE).is_schedulable)


def test_a_drain_that_another_user_takes_over_is_not_resumed(cluster: Cluster, driver: SlurmDriver) -> None:
    driver.perform(action(CORDON))
    with pytest.raises(ActionRefused, match="belongs to watchkeeper:I-7/1-cordon, not to I-70"):
        driver.perform(action(UNCORDON, incident="I-70"))
    cluster.ask("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=mine now")
    with pytest.raises(ActionRefused, match="the drain is not Watchkeeper's"):
        driver.perform(action(UNCORDON))


def test_a_node_that_a_user_resumes_is_not_drained_again(cluster: Cluster, driver: SlurmDriver) -> None:
    driver.perform(action(CORDON))
    cluster.ask("scontrol", "update", "NodeName=n1", "State=RESUME")
    until(lambda: driver.observe(PLACE).is_schedulable)
    assert driver.observe(PLACE).cordoned_by is None
    with pytest.raises(ActionRefused, match="our drain is gone"):
        driver.perform(action(DRAIN))


def test_the_reason_of_a_node_that_is_down_is_kept_behind_our_mark(cluster: Cluster, driver: SlurmDriver) -> None:
    cluster.ask("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=fan failed")
    assert driver.observe(PLACE).health_problems == ("Slurm (down: fan failed)",)
    driver.perform(action(CORDON))
    assert f"Reason={MARK} (was: fan failed)" in cluster.ask("scontrol", "show", "node", "n1")
    assert driver.observe(PLACE).cordoned_by == MARK


@pytest.mark.parametrize("name", ["n[1-3]", "n1,n2", "ALL nodes", "-w", "n1 State=DOWN"])
def test_a_name_that_means_several_nodes_is_refused(cluster: Cluster, driver: SlurmDriver, name: str) -> None:
    with pytest.raises(ActionRefused, match="is not the name of one node"):
        driver.perform(action(CORDON, name))
    assert states(cluster) == ["idle"] * 3


def test_a_node_that_slurm_does_not_know_does_not_exist(driver: SlurmDriver) -> None:
    assert driver.observe(Place("main", node="n9")).exists is False
    assert "n9 has left the cluster" in driver.perform(action(UNCORDON, "n9")).text
    with pytest.raises(ActionFailed, match="the cluster has no node n9"):
        driver.perform(action(CORDON, "n9"))


def test_a_controller_that_does_not_answer_is_waited_for(cluster: Cluster) -> None:
    conf = (cluster.folder / "slurm.conf").read_text()
    (cluster.folder / "away.conf").write_text(conf.replace("SlurmctldPort=", "SlurmctldPort=1\n#"))
    driver = SlurmDriver(environment={"SLURM_CONF": str(cluster.folder / "away.conf")}, timeout_seconds=1.0)
    done = driver.perform(action(CORDON))
    assert (done.is_complete, done.text) == (False, "cordon is blocked")
    assert "no answer within 1 s" in done.waits_for[0] or "Unable to contact" in done.waits_for[0]


def test_missing_commands_are_an_error_with_a_remedy(cluster: Cluster) -> None:
    driver = SlurmDriver(cluster.folder / "nowhere", running_jobs=RunningJobs.WAIT)
    with pytest.raises(ActionFailed, match=r"cannot run the command: No such file.*remediate\.slurm_commands"):
        driver.perform(action(CORDON))


def test_an_idle_job_is_warned_and_then_held_for_its_owner(cluster: Cluster, driver: SlurmDriver) -> None:
    job = start(cluster)
    warn, take = action(WARN, jobs=job, wait="1h"), action(RECLAIM, jobs=job)
    assert "Use the GPU within 1h, or run: scontrol update JobId=" in driver.describe(warn)
    assert driver.perform(warn).text == f"warned the owners of {job} of root"
    assert driver.describe(take) == f"scontrol requeuehold {job}"
    assert driver.perform(take).waits_for == (f"job {job} of root: running",)
    until(lambda: driver.perform(take).is_complete)
    until(lambda: cluster.ask("squeue", "-h", "-j", job, "-o", "%T %r").startswith("PENDING job requeued in held"))
    assert driver.observe(PLACE).workloads == ()


def test_a_job_that_cannot_wait_again_ends_only_where_the_policy_cancels(cluster: Cluster, driver: SlurmDriver) -> None:
    job = start(cluster, "--no-requeue")
    with pytest.raises(ActionRefused, match=f"job {job} of root cannot be reclaimed"):
        driver.perform(action(RECLAIM, jobs=job))
    take = action(RECLAIM, jobs=job, how="cancel")
    assert driver.describe(take) == f"scancel {job}"
    driver.perform(take)
    until(lambda: driver.perform(take).is_complete)


@pytest.mark.parametrize("kind", [ActionKind.WARN_OWNER, ActionKind.RECLAIM])
def test_a_job_whose_comment_says_so_is_kept(cluster: Cluster, driver: SlurmDriver, kind: ActionKind) -> None:
    job = start(cluster, "--comment=watchkeeper.dev/keep")
    with pytest.raises(ActionRefused, match=f"job {job} of root is excluded from reclaiming"):
        driver.perform(action(kind, jobs=job, how="cancel"))
    assert driver.observe(PLACE).workloads == (job,)


def test_a_drain_of_one_gpu_waits_for_its_jobs_and_no_others(cluster: Cluster, driver: SlurmDriver) -> None:
    sick, well = start(cluster), start(cluster)
    driver.perform(action(CORDON))
    drain = replace(action(DRAIN, jobs=sick, running_jobs="requeue"), place=Place("main", node="n1", gpu="GPU-1"))
    assert driver.perform(drain).waits_for == (f"job {sick} of root: running",)
    until(lambda: driver.perform(drain).is_complete)
    assert driver.observe(PLACE).workloads == (well,)
