"""What each Xid code of NVIDIA's driver means, from packs/xid.csv.

The agent uses `settle_seconds` and severity, diagnosis uses `cause`, and `watchkeeper explain xid` prints it. An
undocumented code has a row that says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from watchkeeper.catalogue import pack
from watchkeeper.model import alerts, diagnosis

FILE = "xid.csv"
CLASSES = frozenset(
    {"application", "driver", "gsp_firmware", "memory_ecc", "nvlink", "other", "pcie", "thermal_power", "unknown"}
)
SCOPES = frozenset({"process", "gpu", "node", "fabric", "unknown"})
ACTIONS = frozenset(
    {
        "check_fabric",
        "contact_vendor",
        "drain_then_reset",
        "investigate",
        "monitor",
        "none",
        "reboot_node",
        "replace_gpu",
        "reset_gpu",
        "restart_app",
    }
)
# The source has four levels, alerts have three: `fatal` and `critical` both page.
SEVERITIES = {
    "fatal": alerts.Severity.CRITICAL,
    "critical": alerts.Severity.CRITICAL,
    "warning": alerts.Severity.WARNING,
    "info": alerts.Severity.INFO,
}
# How long to wait for more signals after an undocumented code: the same as for most others.
UNKNOWN_SETTLE_SECONDS = 10


@dataclass(frozen=True, slots=True)
class XidRow:
    """One Xid code. `is_known` is False for a code outside the catalogue; missing texts are empty."""

    code: int
    name: str
    fault_class: str
    severity: alerts.Severity
    scope: str
    likely_cause: str
    action: str
    needs_drain: bool
    nvidia_immediate: str
    nvidia_investigatory: str
    mnemonic: str
    is_unused: bool
    device_plugin: str
    note: str
    source: str
    cause: str
    settle_seconds: int
    is_known: bool = True

    @property
    def certainty(self) -> str:
        """How reliable the row is, as text."""
        if not self.is_known:
            return "none: the code is not in the catalogue"
        if self.is_unused:
            return "low: NVIDIA marks the code as unused on current GPUs"
        if not self.nvidia_immediate:
            return "medium: NVIDIA's catalogue gives no resolution for it"
        if self.cause == diagnosis.UNKNOWN_CAUSE:
            return "medium: the meaning is documented, but it can have several causes"
        return "high: NVIDIA's catalogue gives meaning and resolution"


def lookup(code: int) -> XidRow:
    return _by_code().get(code) or _undescribed(code)


def all_codes() -> tuple[XidRow, ...]:
    return tuple(_by_code().values())


@cache
def settle_seconds(cause: str) -> int:
    """How long to wait for more signals before a diagnosis of this cause: the longest of its Xid codes."""
    return max((row.settle_seconds for row in all_codes() if row.cause == cause), default=0)


def read_row(cells: Mapping[str, str]) -> XidRow:
    severity = pack.choice(cells["severity"], frozenset(SEVERITIES))
    return XidRow(
        code=int(cells["code"]),
        name=pack.required(cells["short_name"]),
        fault_class=pack.choice(cells["class"], CLASSES),
        severity=SEVERITIES[severity],
        scope=pack.choice(cells["scope"], SCOPES),
        likely_cause=pack.required(cells["likely_cause"]),
        action=pack.choice(cells["immediate_action"], ACTIONS),
        needs_drain=pack.yes_or_no(cells["needs_drain"]),
        nvidia_immediate=cells["nvidia_immediate_resolution"],
        nvidia_investigatory=cells["nvidia_investigatory_resolution"],
        mnemonic=cells["mnemonic"],
        is_unused=pack.yes_or_no(cells["unused_in_catalogue"]),
        device_plugin=pack.choice(cells["k8s_device_plugin_default"], frozenset({"ignored", "marks_unhealthy"})),
        note=cells["note"],
        source=pack.required(cells["source"]),
        cause=pack.required(cells["cause"]),
        settle_seconds=int(cells["settle_seconds"]),
    )


@cache
def _by_code() -> dict[int, XidRow]:
    return {row.code: row for row in pack.load(FILE, read_row)}


def _undescribed(code: int) -> XidRow:
    return XidRow(
        code=code,
        name=f"Xid {code} is not in the catalogue",
        fault_class="unknown",
        severity=alerts.Severity.WARNING,
        scope="unknown",
        likely_cause="",
        action="investigate",
        needs_drain=False,
        nvidia_immediate="",
        nvidia_investigatory="",
        mnemonic="",
        is_unused=False,
        # The plugin's default list names the codes it ignores; every other code marks the GPU unhealthy.
        device_plugin="marks_unhealthy",
        note="Keep the whole kernel line and the driver version; look it up in NVIDIA's current Xid catalogue.",
        source="",
        cause=diagnosis.UNKNOWN_CAUSE,
        settle_seconds=UNKNOWN_SETTLE_SECONDS,
        is_known=False,
    )
