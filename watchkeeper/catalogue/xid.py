"""What each Xid code of NVIDIA's driver means, from packs/xid.csv.

The agent uses `settle_seconds` and severity, diagnosis uses `cause`, and `watchkeeper explain xid` prints it. An
undocumented code has a row that says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

from watchkeeper.catalogue import pack
from watchkeeper.model import alerts, diagnosis

FILE = "xid.csv"
CLASSES = frozenset(
    {"application", "driver", "gsp_firmware", "memory_ecc", "nvlink", "other", "pcie", "thermal_power", "unknown"}
)
SCOPES = frozenset({"process", "gpu", "node", "fabric", "unknown"})
ACTIONS = frozenset(
    {"check_fabric", "contact_vendor", "drain_then_reset", "investigate", "monitor", "none", "reboot_node"}
    | {"replace_gpu", "reset_gpu", "restart_app"}
)
DEVICE_PLUGIN_DEFAULTS = frozenset({"ignored", "marks_unhealthy"})
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

    code: int = pack.cell(int)
    name: str = pack.cell(pack.required, "short_name")
    fault_class: str = pack.cell(partial(pack.choice, choices=CLASSES), "class")
    severity: alerts.Severity = pack.cell(lambda text: SEVERITIES[pack.choice(text, frozenset(SEVERITIES))])
    scope: str = pack.cell(partial(pack.choice, choices=SCOPES))
    likely_cause: str = pack.cell(pack.required)
    action: str = pack.cell(partial(pack.choice, choices=ACTIONS), "immediate_action")
    needs_drain: bool = pack.cell(pack.yes_or_no)
    nvidia_immediate: str = pack.cell(column="nvidia_immediate_resolution")
    nvidia_investigatory: str = pack.cell(column="nvidia_investigatory_resolution")
    mnemonic: str = pack.cell()
    is_unused: bool = pack.cell(pack.yes_or_no, "unused_in_catalogue")
    device_plugin: str = pack.cell(partial(pack.choice, choices=DEVICE_PLUGIN_DEFAULTS), "k8s_device_plugin_default")
    note: str = pack.cell()
    source: str = pack.cell(pack.required)
    cause: str = pack.cell(pack.required)
    settle_seconds: int = pack.cell(int)
    is_known: bool = True

    @property
    def certainty(self) -> str:
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
    return _by_code().get(code) or XidRow(
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


def all_codes() -> tuple[XidRow, ...]:
    return tuple(_by_code().values())


@cache
def settle_seconds(cause: str) -> int:
    """How long to wait for more signals before a diagnosis of this cause: the longest of its Xid codes."""
    return max((row.settle_seconds for row in all_codes() if row.cause == cause), default=0)


read_row = pack.row_reader(XidRow)


@cache
def _by_code() -> dict[int, XidRow]:
    return {row.code: row for row in pack.load(FILE, read_row)}
