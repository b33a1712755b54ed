"""Checks that only the node can make before it is given back: its own scan, and active tests of its GPUs.

Each is a `validation.Validator`: the first question gives a work order, the next ones look for its receipt. Unknown is
not passed: an agent that does not answer, or a scan that cannot tell, keeps the node away until the step's time is up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from watchkeeper.model import fleet, orders
from watchkeeper.model.actions import Result
from watchkeeper.remediate.orders import OrderQueue, OrderRequest
from watchkeeper.remediate.validation import CheckResult, CheckState

ACTOR = "validation"
# An answer that says nothing is asked for again: a driver may need a minute after a boot.
MOST_TRIES = 5
PAUSE = timedelta(minutes=1)
# The words of `scan --json` and of `diag --json`.
STANDINGS: Mapping[str, CheckState] = {
    "healthy": CheckState.PASSED,
    "degraded": CheckState.FAILED,
    "unhealthy": CheckState.FAILED,
    "passed": CheckState.PASSED,
    "failed": CheckState.FAILED,
}


def node_validators(outbox: Callable[[], OrderQueue | None]) -> tuple[NodeCheck, ...]:
    """The keys of `validation.NODE_CHECKS`."""
    return (
        NodeCheck(outbox, "scan", "scan"),
        NodeCheck(outbox, "diag_2", "diag", {"level": "2"}),
        NodeCheck(outbox, "diag_3", "diag", {"level": "3"}),
    )


@dataclass(frozen=True, slots=True)
class NodeCheck:
    outbox: Callable[[], OrderQueue | None]
    name: str
    kind: str
    arguments: Mapping[str, str] = field(default_factory=dict)

    def check(self, place: fleet.Place, since: datetime, now: datetime) -> CheckResult:
        outbox, said = self.outbox(), "nothing"
        if outbox is None or place.node is None:
            return self._unknown("this hub gives no work orders: hub.order_key_file is not set")
        for number in range(1, MOST_TRIES + 1):
            wanted = self._wanted(place, since, number)
            assert wanted.id is not None
            tracked = outbox.find_order(wanted.id)
            if tracked is None or tracked.receipt is None:
                tracked = outbox.issue(wanted, now=now, actor=ACTOR)
                if tracked.state(now) is orders.OrderState.EXPIRED:
                    said = f"the agent of {place.node} did not answer {self.kind}"
                    continue
                return self._unknown(f"waits for {self.kind} of {place.node}, {tracked.state(now)}")
            verdict = self._judge(tracked.receipt)
            if verdict.state is not CheckState.UNKNOWN or tracked.receipt.result is Result.REFUSED:
                return verdict
            said = verdict.text
            if abs(now - tracked.receipt.at) < PAUSE:
                return self._unknown(f"{said}; asked again in a moment")
        return self._unknown(f"{said}, after {MOST_TRIES} of {MOST_TRIES} tries")

    def _wanted(self, place: fleet.Place, since: datetime, number: int) -> OrderRequest:
        assert place.node is not None
        # Asked again after a restart of the hub, it is the same question; after another repair it is another one.
        about = json.dumps([place.cluster, place.node, self.name, since.timestamp()])
        id = f"check-{self.name}-{hashlib.sha256(about.encode()).hexdigest()[:24]}-{number}"
        life = timedelta(seconds=orders.KINDS[self.kind].seconds) + orders.USUAL_LIFE
        why = f"{place.node} is validated before it is given back"
        return OrderRequest(place.cluster, place.node, self.kind, self.arguments, why, life, id)

    def _judge(self, receipt: orders.Receipt) -> CheckResult:
        if receipt.result is not Result.DONE:
            return self._unknown(f"{receipt.result}: {receipt.text}")
        try:
            answer = json.loads(receipt.output)
            word = str(answer["verdict"])
        except (ValueError, TypeError, KeyError):
            return self._unknown(f"{receipt.text}, and its report cannot be read")
        return CheckResult(self.name, STANDINGS.get(word, CheckState.UNKNOWN), f"{receipt.text} ({word})")

    def _unknown(self, text: str) -> CheckResult:
        return CheckResult(self.name, CheckState.UNKNOWN, text)
