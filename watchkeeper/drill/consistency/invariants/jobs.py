"""Jobs: the list, the page, the explanation and the incidents tell the same story about each job."""

from __future__ import annotations

from collections.abc import Iterator

from watchkeeper.drill.consistency.invariants import subjects
from watchkeeper.drill.consistency.invariants.table import Contradiction, agree, invariant, require
from watchkeeper.drill.consistency.looks import Look
from watchkeeper.kit import wire

STOPPED = ("hung", "stalled")
HOUR_SECONDS, GOODPUT_DIFFERENCE = 3600, 0.2
SHOWN = ("state", "gpus", "nodes", "goodput", "used", "gpu_hours", "cost", "incidents", "stalled_since", "bound_by")


@invariant
def job_line(look: Look) -> Iterator[Contradiction]:
    """A job has the same state, GPUs, goodput, cost and incidents in the list, in the command and on its page."""
    listed = {job["id"]: job for job in look.rows("watchkeeper jobs --json", "jobs")}
    for job, page in subjects.job_pages(look):
        lines = {"/api/jobs": job, "page": page["job"], "watchkeeper jobs": listed.get(job["id"])}
        yield from agree(job["id"], {name: line and {key: line[key] for key in SHOWN} for name, line in lines.items()})


@invariant
def goodput_of_a_job(look: Look) -> Iterator[Contradiction]:
    """In the first hour, the goodput of a job in the list differs by at most 0.2 from that on its page.

    The list averages five-minute values of the last hour, and the page counts since the start.
    """
    for job, page in subjects.job_pages(look):
        listed, share = job["goodput"], page["goodput"]["share"]
        is_young = page["goodput"]["wall_seconds"] < HOUR_SECONDS
        is_right = listed is None or share is None or not is_young or abs(listed - share) <= GOODPUT_DIFFERENCE
        yield from require(is_right, job["id"], list=listed, page=share)


@invariant
def wall_time_of_a_job(look: Look) -> Iterator[Contradiction]:
    """Productive and lost seconds of a job are its wall time."""
    for job, page in subjects.job_pages(look):
        goodput = page["goodput"]
        if goodput["productive_seconds"] is not None:
            seconds = goodput["productive_seconds"] + sum(row["seconds"] for row in goodput["lost"])
            values = {"wall": goodput["wall_seconds"], "productive and lost": seconds}
            yield from agree(job["id"], values, tolerance=0.01)


@invariant
def longest_pause(look: Look) -> Iterator[Contradiction]:
    """The longest pause of a stalled job is at least as long as its stall."""
    for job, page in subjects.job_pages(look):
        pause = page["goodput"]["longest_pause_seconds"]
        if job["stalled_since"] and pause is not None:
            stall = (look.at - wire.parse_time(job["stalled_since"])).total_seconds()
            yield from require(pause >= stall - 60, job["id"], longest_pause=pause, stalled_for=stall)


@invariant
def shares_of_a_job(look: Look) -> Iterator[Contradiction]:
    """The shares of a job are between 0 and 1."""
    for job in subjects.jobs(look):
        for key in ("used", "memory_used", "goodput"):
            yield from require(job[key] is None or 0 <= job[key] <= 1.001, job["id"], **{key: job[key]})


@invariant
def jobs_on_dead_nodes(look: Look) -> Iterator[Contradiction]:
    """A job with a rank on a node that is off is not running."""
    off = {line["name"] for line in subjects.node_lines(look) if line["state"] in ("silent", "gone")}
    for job, page in subjects.job_pages(look):
        dead = sorted({rank["node"] for rank in page["ranks"]} & off)
        yield from require(not (dead and job["state"] == "running"), job["id"], state="running", nodes_off=dead)


@invariant
def stopped_jobs_have_incidents(look: Look) -> Iterator[Contradiction]:
    """A stopped job of which an alert fires names an open incident."""
    alerts = look.rows("/api/v1/alerts", "data", "alerts")
    firing = {alert["labels"].get("job_name") for alert in alerts if alert["state"] == "firing"}
    for job in subjects.jobs(look):
        is_alone = job["state"] in STOPPED and job["name"] in firing and not job["incidents"]
        yield from require(not is_alone, job["id"], state=job["state"], incidents=[])


@invariant
def impact_on_a_job(look: Look) -> Iterator[Contradiction]:
    """A job that an open incident stops is not running."""
    states = {job["name"]: job["state"] for job in subjects.jobs(look)}
    for card in subjects.cards(look):
        for hit in subjects.blast(look, card).get("hits", ()):
            state = states.get(hit["workload"])
            yield from require(
                not (hit["stopped"] and state == "running"), hit["workload"], stopped_by=card["id"], job=state
            )


@invariant
def verdict_of_a_job(look: Look) -> Iterator[Contradiction]:
    """The page of a job and its explanation begin with the same verdict, which is not fine if the job has stopped."""
    for job, page in subjects.job_pages(look):
        verdict, explained = page["verdict"] or {}, subjects.explained_job(look, job).get("headline", "")
        text, incident = verdict.get("text", ""), verdict.get("incident")
        is_same = not explained or explained.startswith(text)
        is_right = verdict.get("status") != "fine" or job["state"] not in STOPPED
        is_own = incident is None or incident in job["incidents"]
        yield from require(
            is_same and is_right and is_own, job["id"], page=text, explained=explained, state=job["state"]
        )


@invariant
def hardware_of_a_stopped_job(look: Look) -> Iterator[Contradiction]:
    """A stopped job with an open incident at one of its GPUs lists what happened to it."""
    at_gpus = {card["id"] for card in subjects.cards(look) if card["place"]["gpu"]}
    for job, page in subjects.job_pages(look):
        own = at_gpus & set(job["incidents"])
        is_right = page["hardware"] or not own or job["state"] not in STOPPED
        yield from require(is_right, job["id"], hardware_events=0, incidents=sorted(own))
