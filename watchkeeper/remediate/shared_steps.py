"""Reboots that several plans want of one node: each plan names the others, because one reboot is enough.

The pipeline asks while it makes a plan, and keeps what comes back. All functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from watchkeeper.model import actions, fleet

_WRITTEN = re.compile(r" \(also planned for ([^:)]+): one reboot is enough\)")


def rebooted_nodes(plan: actions.Plan) -> set[fleet.Place]:
    """The nodes that a plan reboots."""
    return {receipt.action.place for receipt in plan.receipts if _is_reboot(receipt)}


def with_shared_incidents(plan: actions.Plan, others: Iterable[str]) -> actions.Plan:
    """The plan with these incidents at its reboots, beside those that it names already."""
    added = set(others)
    receipts = (_with(receipt, added) if added and _is_reboot(receipt) else receipt for receipt in plan.receipts)
    return replace(plan, receipts=tuple(receipts))


def is_shared_with(plan: actions.Plan, incident: str) -> bool:
    """Whether a step of the plan is shared with this incident."""
    return any(incident in shared_with(receipt) for receipt in plan.receipts)


def have_same_steps(plan: actions.Plan, other: actions.Plan | None) -> bool:
    """Whether a person would be told the same by both: the same steps, shared with the same incidents."""
    return other is not None and _steps(plan) == _steps(other)


def shared_with(receipt: actions.Receipt) -> tuple[str, ...]:
    return receipt.shared_with or _shared_in_text(receipt.text)


def _shared_in_text(text: str) -> tuple[str, ...]:
    """Compatibility: journals of before `Receipt.shared_with` have the incidents in the text only."""
    return tuple(sorted({id for listed in _WRITTEN.findall(text) for id in listed.split(", ")}))


def _with(receipt: actions.Receipt, added: set[str]) -> actions.Receipt:
    before = shared_with(receipt)
    every = tuple(sorted({*before, *added}))
    return replace(receipt, text=receipt.text.removesuffix(_words(before)) + _words(every), shared_with=every)


def _words(incidents: tuple[str, ...]) -> str:
    return f" (also planned for {', '.join(incidents)}: one reboot is enough)" if incidents else ""


def _is_reboot(receipt: actions.Receipt) -> bool:
    return receipt.action.kind is actions.ActionKind.REBOOT


def _steps(plan: actions.Plan) -> object:
    return [(one.action, one.result, shared_with(one), one.text if _is_reboot(one) else "") for one in plan.receipts]
