"""Say in one sentence what is wrong with a job, since when and because of what, or that nothing is, with the evidence.

`web.fleet.job_page_api` calls it with the report of a job and the cause that the diagnosis and the open incidents give;
the page of the job, `explain job` and `jobs ID` show the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from watchkeeper.model.jobs import JobReport, JobState, JobVerdict, Rank, RankState, VerdictStatus

# A job that finished a step so recently, or within so many steps, makes progress; less recently if it has a fault.
FRESH_SECONDS, FRESH_SECONDS_OF_FAULT, FRESH_STEPS = 30.0, 15.0, 3
NO_STEP_TEXT = "No rank has finished a step"
STATE_TEXTS = {
    JobState.HUNG: "Its GPUs wait in a collective and have done no work",
    JobState.STALLED: "Its GPUs have done no work",
    JobState.DIVERGED: "Its loss has diverged",
    JobState.SLOW: "It has been slower than it should be",
    JobState.IDLE: "Its GPUs have been idle",
}


@dataclass(frozen=True, slots=True)
class JobCause:
    """What the diagnosis and the open incidents say; `is_of_job`: about the job itself, and not about its hardware."""

    cause: str
    text: str
    incident: str | None = None
    is_of_job: bool = False


def decide_verdict(report: JobReport, now: datetime, cause: JobCause | None) -> JobVerdict:
    line, state = report.job, report.job.state
    if state in STATE_TEXTS:
        has_steps = report.last_step_at is not None and state in (JobState.HUNG, JobState.STALLED)
        text = NO_STEP_TEXT if has_steps else STATE_TEXTS[state]
        reason = report.why if state is not JobState.IDLE else ""
        since = line.stalled_since or line.problem_since
        return _make_verdict(VerdictStatus.WRONG, text, since, cause, reason=reason)
    if state is JobState.PENDING:
        return _make_verdict(VerdictStatus.WRONG, report.why[:1].upper() + report.why[1:], None, cause)
    if state is JobState.PAUSED:
        return _make_verdict(VerdictStatus.FINE, "It pauses, as it reports itself", None, cause)
    if state is JobState.UNKNOWN and report.last_step_at is not None:
        text = f"{NO_STEP_TEXT} and none reports any more"
        reason = "its program has ended or cannot be reached"
        return _make_verdict(VerdictStatus.WRONG, text, report.last_step_at, cause, reason=reason)
    if state is JobState.UNKNOWN:
        status = VerdictStatus.UNKNOWN if cause is None else VerdictStatus.WRONG
        return _make_verdict(status, f"Whether it runs is unknown, because {_reporting_text(report)}", None, cause)
    return _judge_running(report, now, cause)


def _judge_running(report: JobReport, now: datetime, cause: JobCause | None) -> JobVerdict:
    """A job without a problem that its state shows: whether its last step and its GPUs say that it makes progress."""
    last_step_at, reporting = report.last_step_at, _reporting_text(report)
    silent = _silent_ranks(report)
    if last_step_at is not None and _is_late(report, now, has_fault=bool(silent) or cause is not None):
        status = VerdictStatus.UNKNOWN if cause is None else VerdictStatus.WRONG
        reason = reporting if silent else "this may be one of its usual pauses"
        reason = report.why if report.straggler is not None else reason
        return _make_verdict(status, NO_STEP_TEXT, last_step_at, cause, reason=reason)
    if cause is not None and cause.is_of_job:
        return _make_verdict(VerdictStatus.WRONG, STATE_TEXTS[JobState.SLOW], report.job.problem_since, cause)
    if last_step_at is None:
        return _judge_by_gpus(report, cause)
    evidence = f"the last step finished {max(0.0, (now - last_step_at).total_seconds()):.0f} s ago, and {reporting}"
    if cause is not None:
        return _make_verdict(VerdictStatus.FINE, f"It makes progress: {evidence}. On its hardware", None, cause)
    text = f"It makes progress: {evidence}" if silent else f"Nothing is wrong: {evidence}"
    return _make_verdict(VerdictStatus.FINE, text, None, None)


def _judge_by_gpus(report: JobReport, cause: JobCause | None) -> JobVerdict:
    """A running job that reports no steps."""
    used, reporting = report.job.used, _reporting_text(report)
    if cause is None and report.straggler is not None:
        return _make_verdict(VerdictStatus.UNKNOWN, "It may be blocked", None, None, reason=report.why)
    if cause is not None or used is None or _silent_ranks(report):
        text = f"Whether it works is unknown: {reporting}, and it reports no steps"
        return _make_verdict(VerdictStatus.UNKNOWN, text, None, cause)
    text = f"No problem found: {reporting}, with SMs active {used:.0%} of the last hour. It reports no steps"
    return _make_verdict(VerdictStatus.FINE, text, None, None)


def _is_late(report: JobReport, now: datetime, *, has_fault: bool) -> bool:
    shortest = FRESH_SECONDS_OF_FAULT if has_fault else FRESH_SECONDS
    limit = max(shortest, FRESH_STEPS * (report.goodput.step_seconds or 0.0))
    return report.last_step_at is not None and (now - report.last_step_at).total_seconds() > limit


def _make_verdict(
    status: VerdictStatus, text: str, since: datetime | None, cause: JobCause | None, *, reason: str = ""
) -> JobVerdict:
    if cause is None:
        return JobVerdict(status, text, since, reason)
    return JobVerdict(status, text, since, cause.text.rstrip("."), cause.cause, cause.incident)


def _silent_ranks(report: JobReport) -> list[Rank]:
    return [rank for rank in report.ranks if rank.state in (RankState.MISSING, RankState.UNKNOWN)]


def _reporting_text(report: JobReport) -> str:
    """How many ranks of the job report; how many of its GPUs, if those are what does not."""
    total, silent = len(report.ranks) + report.omitted_ranks, _silent_ranks(report)
    has_ranks = any(rank.rank is not None for rank in report.ranks)
    subject = "GPU" if not has_ranks or any(rank.state is RankState.UNKNOWN for rank in silent) else "rank"
    if len(silent) == total:
        return f"none of its {subject}s reports"
    if total == 1:
        return f"its {subject} reports"
    return f"all {total} {subject}s report" if not silent else f"{total - len(silent)} of {total} {subject}s report"
