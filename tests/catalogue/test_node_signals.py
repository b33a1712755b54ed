"""What others write on a node: conditions of faults, and marks of those who have it in hand."""

from __future__ import annotations

import pytest

from watchkeeper.catalogue.node_signals import Meaning, SignalKind, find_signal

CONDITION, TAINT, LABEL = SignalKind.CONDITION, SignalKind.TAINT, SignalKind.LABEL


@pytest.mark.parametrize(
    ("kind", "name", "value", "meaning"),
    [
        (CONDITION, "KernelDeadlock", "True", Meaning.UNHEALTHY),
        (CONDITION, "KernelDeadlock", "False", None),
        (CONDITION, "GpuThermalWatch", "True", Meaning.UNHEALTHY),
        (CONDITION, "Ready", "Unknown", Meaning.UNHEALTHY),
        (CONDITION, "AcceleratedHardwareReady", "True", None),
        (CONDITION, "AcceleratedHardwareReady", "False", Meaning.UNHEALTHY),
        (CONDITION, "WatchkeeperUnhealthy", "True", None),
        (TAINT, "AggregatedNodeHealth", "False", Meaning.HELD),
        (TAINT, "watchkeeper.dev/unhealthy", "I-7", None),
        (TAINT, "node.kubernetes.io/unschedulable", "", None),
        (LABEL, "nvidia.com/gpu-driver-upgrade-state", "upgrade-done", None),
        (LABEL, "nvidia.com/gpu-driver-upgrade-state", "drain-required", Meaning.HELD),
        (LABEL, "watchkeeper.dev/maintenance", "", Meaning.HELD),
    ],
)
def test_what_a_signal_means(kind: SignalKind, name: str, value: str, meaning: Meaning | None) -> None:
    signal = find_signal(kind, name, value)
    assert (signal.means if signal is not None else None) is meaning
