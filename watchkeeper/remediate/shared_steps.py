"""Mark reboots that several plans share: each plan names the other incidents, because one reboot is enough.

`hub.pipeline` calls these pure functions when it makes a plan, and stores the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from watchkeeper.model import actions, fleet

_SHARED_TEXT = re.compile(r" \(also planned for ([^:)]+): one reboot is enough\)")


def rebooted_nodes(plan: actions.Plan) -> set[fleet.Place]:
    return {receipt.action.place for receipt in plan.receipts if _is_reboot(receipt)}


def with_shared_incidents(plan: actions.Plan, others: Iterable[str]) -> actions.Plan:
    added = set(others)
    if not added:
        return plan
    receipts = (_add_incidents(receipt, added) if _is_reboot(receipt) else receipt for receipt in plan.receipts)
    return replace(plan, receipts=tuple(receipts))


def is_shared_with(plan: actions.Plan, incident: str) -> bool:
    return any(incident in read_shared_incidents(receipt) for receipt in plan.receipts)


def have_same_steps(plan: actions.Plan, other: actions.Plan | None) -> bool:
    """Whether both plans have the same steps, shared with the same incidents."""
    return other is not None and _comparable_steps(plan) == _comparable_steps(other)


def read_shared_incidents(receipt: actions.Receipt) -> tuple[str, ...]:
    """Return the incidents that share the action; older journals have them only in the text."""
    in_text = {id for listed in _SHARED_TEXT.findall(receipt.text) for id in listed.split(", ")}
    return receipt.shared_with or tuple(sorted(in_text))


def _add_incidents(receipt: actions.Receipt, added: set[str]) -> actions.Receipt:
    previous = read_shared_incidents(receipt)
    all_incidents = tuple(sorted({*previous, *added}))
    text = receipt.text.removesuffix(_format_shared(previous)) + _format_shared(all_incidents)
    return replace(receipt, text=text, shared_with=all_incidents)


def _format_shared(incidents: tuple[str, ...]) -> str:
    return f" (also planned for {', '.join(incidents)}: one reboot is enough)" if incidents else ""


def _is_reboot(receipt: actions.Receipt) -> bool:
    return receipt.action.kind is actions.ActionKind.REBOOT


def _comparable_steps(plan: actions.Plan) -> object:
    return [
        (receipt.action, receipt.result, read_shared_incidents(receipt), receipt.text if _is_reboot(receipt) else "")
        for receipt in plan.receipts
    ]
