"""Check a node with work orders before it is uncordoned: its own scan, and active tests of its GPUs.

Each check is a `validation.Validator`: the first call issues a work order, later calls look for its receipt. Unknown is
not passed: without an answer of the agent, or without a verdict, the node stays cordoned until the step times out.
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
# A receipt without a verdict is ordered again: a driver may need a minute after a boot.
MAX_TRIES = 5
PAUSE = timedelta(minutes=1)
# The verdicts of `scan --json` and `diag --json`.
VERDICT_STATES: Mapping[str, CheckState] = {
    "healthy": CheckState.PASSED,
    "degraded": CheckState.FAILED,
    "unhealthy": CheckState.FAILED,
    "passed": CheckState.PASSED,
    "failed": CheckState.FAILED,
}


def node_validators(order_queue: Callable[[], OrderQueue | None]) -> tuple[NodeCheck, ...]:
    """Return the validators of `validation.NODE_CHECKS`."""
    return (
        NodeCheck(order_queue, "scan", "scan"),
        NodeCheck(order_queue, "diag_2", "diag", {"level": "2"}),
        NodeCheck(order_queue, "diag_3", "diag", {"level": "3"}),
    )


@dataclass(frozen=True, slots=True)
class NodeCheck:
    order_queue: Callable[[], OrderQueue | None]
    name: str
    kind: str
    arguments: Mapping[str, str] = field(default_factory=dict)

    def check(self, place: fleet.Place, since: datetime, now: datetime) -> CheckResult:
        queue, last_text = self.order_queue(), ""
        if queue is None or place.node is None:
            return self._unknown("this hub issues no work orders: hub.order_key_file is not set")
        for number in range(1, MAX_TRIES + 1):
            request = self._build_request(place, since, number)
            assert request.id is not None
            tracked = queue.find_order(request.id)
            if tracked is None or tracked.receipt is None:
                tracked = queue.issue(request, now=now, actor=ACTOR)
                if tracked.state(now) is orders.OrderState.EXPIRED:
                    last_text = f"the agent of {place.node} did not answer the order {self.kind}"
                    continue
                return self._unknown(f"{self.kind} of {place.node}: the work order is {tracked.state(now)}")
            result = self._read_receipt(tracked.receipt)
            if result.state is not CheckState.UNKNOWN or tracked.receipt.result is Result.REFUSED:
                return result
            last_text = result.text
            if abs(now - tracked.receipt.at) < PAUSE:
                return self._unknown(f"{last_text}; retried within {PAUSE.total_seconds():.0f} s")
        return self._unknown(f"{last_text}; {MAX_TRIES} tries failed, the limit is {MAX_TRIES}")

    def _build_request(self, place: fleet.Place, since: datetime, number: int) -> OrderRequest:
        assert place.node is not None
        # The id is the same after a restart of the hub, and different after another repair.
        key = json.dumps([place.cluster, place.node, self.name, since.timestamp()])
        id = f"check-{self.name}-{hashlib.sha256(key.encode()).hexdigest()[:24]}-{number}"
        lifetime = timedelta(seconds=orders.KINDS[self.kind].seconds) + orders.DEFAULT_LIFETIME
        why = f"{place.node} is validated before it is uncordoned"
        return OrderRequest(place.cluster, place.node, self.kind, self.arguments, why, lifetime, id)

    def _read_receipt(self, receipt: orders.Receipt) -> CheckResult:
        if receipt.result is not Result.DONE:
            return self._unknown(f"{receipt.result}: {receipt.text}")
        try:
            answer = json.loads(receipt.output)
            verdict = str(answer["verdict"])
        except (ValueError, TypeError, KeyError):
            return self._unknown(f"{receipt.text}; its report has no verdict")
        return CheckResult(self.name, VERDICT_STATES.get(verdict, CheckState.UNKNOWN), f"{receipt.text} ({verdict})")

    def _unknown(self, text: str) -> CheckResult:
        return CheckResult(self.name, CheckState.UNKNOWN, text)
