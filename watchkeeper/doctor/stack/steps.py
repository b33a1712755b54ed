"""Check the steps from bare machines to the running stack, in the order of packs/stack_steps.csv, and name the next.

`doctor stack` prints them. A step whose source was not read is unknown, with the command that shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from watchkeeper.catalogue import setup_steps
from watchkeeper.doctor.stack import cluster_steps, node_steps
from watchkeeper.doctor.stack.facts import Stack, StepResult, StepState, unknown

NOT_READ = "cannot be checked from here"
WHERE = {
    "node": "On each node: sudo watchkeeper doctor stack --node",
    "cluster": "With a kubeconfig: watchkeeper doctor stack --steps --kubeconfig FILE",
    "prometheus": "With the URL of Prometheus: watchkeeper doctor stack --steps --prometheus URL",
}


@dataclass(frozen=True, slots=True)
class StackStep:
    """A step, its state and what is true now.

    `action` is the fix of a failed step, or what checks an unknown one; `by_hand` shows the state without Watchkeeper.
    `was_read` is false if the source that can answer was not given.
    """

    step: str
    title: str
    where: str
    state: StepState
    now: str
    action: str
    by_hand: str
    was_read: bool


def check(stack: Stack) -> list[StackStep]:
    results = _results(stack)
    return [_make_step(row, results.get(row.step)) for row in setup_steps.steps()]


def next_step(steps: Sequence[StackStep]) -> StackStep | None:
    """The first failed step, else the first unknown one; None if all passed."""
    by_state = {state: [step for step in steps if step.state is state] for state in StepState}
    return next(iter([*by_state[StepState.FAILED], *by_state[StepState.UNKNOWN]]), None)


def _results(stack: Stack) -> Mapping[str, StepResult]:
    results: dict[str, StepResult] = {}
    if stack.node is not None:
        results |= {check.__name__: check(stack.node) for check in node_steps.CHECKS}
    if stack.kubernetes is not None:
        cluster = stack.kubernetes
        results |= {check.__name__: cluster_steps.run(cluster, check, kinds) for check, kinds in cluster_steps.CHECKS}
    if stack.prometheus is not None:
        results[cluster_steps.scrape_targets.__name__] = cluster_steps.scrape_targets(stack.prometheus)
    return results


def _make_step(row: setup_steps.StepRow, result: StepResult | None) -> StackStep:
    state, now = result or unknown(NOT_READ)
    match state:
        case StepState.PASSED:
            action = ""
        case StepState.FAILED:
            action = row.fix
        case StepState.UNKNOWN:
            action = row.by_hand if result is not None else WHERE[row.where]
    return StackStep(row.step, row.title, row.where, state, now, action, row.by_hand, was_read=result is not None)
