"""Write packs/rules/xid.yaml from the Xid catalogue: one alert for each cause of critical codes, one for applications.

`generate` writes it with the other pages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from watchkeeper.catalogue import causes, xid
from watchkeeper.cli.fleet.explain import ACTION_TEXTS
from watchkeeper.model.alerts import Severity
from watchkeeper.model.diagnosis import UNKNOWN_CAUSE

# Xids 43 and 45 follow other errors of the same program, so they have no severity of their own in the catalogue.
APPLICATION_CODES = (13, 31, 43, 45)
NODE = "{{ $labels.Hostname }}"
GPU = f"GPU {{{{ $labels.gpu }}}} of {NODE}"
HEAD = """\
# Written by `make golden` from packs/xid.csv and packs/causes.csv; do not edit.
# Xid codes as dcgm-exporter shows them, for fleets without our agent; the kernel log is faster and complete.
# DCGM_FI_DEV_XID_ERRORS is a gauge with the last code: it stays until another Xid or a restart of the exporter, so a
# change within ten minutes is what counts, and a repeat of the same code is not seen. A new code is a new series: it is
# also the label err_code, and the pod whose labels the series had may end. So all series of a GPU are compared.
# Newer drivers log Xid 154 right after a critical code: the gauge then has 154, and GPURecoveryActionPending fires.
groups:
  - name: xid
    rules:
      # The last code of each GPU whose code has changed within ten minutes; on a healthy fleet there is none.
      - record: watchkeeper:gpu_new_xid:code
        expr: |
          max by (cluster, Hostname, UUID, gpu) (DCGM_FI_DEV_XID_ERRORS > 0)
            and on (cluster, Hostname, UUID)
          (
            max by (cluster, Hostname, UUID) (max_over_time(DCGM_FI_DEV_XID_ERRORS[10m]))
              > on (cluster, Hostname, UUID)
            min by (cluster, Hostname, UUID) (min_over_time(DCGM_FI_DEV_XID_ERRORS[10m]))
          )
"""
ALERT = """
      - alert: {name}
        expr: |
          {expr}
        labels:
          severity: {severity}
          cause: {cause}{resolution}
        annotations:
          summary: {summary}
          description: >-
            The driver logged Xid {{{{ $value }}}} on {{{{ $labels.UUID }}}}. Codes of this alert:
            {codes}.
          action: {action}
          runbook_url: docs/runbooks/{runbook}.md
"""
# The program's labels are those that dcgm-exporter adds on Kubernetes; elsewhere they are absent.
APPLICATION_EXPR = """max by (cluster, Hostname, UUID, gpu, namespace, pod) (
            {codes}
          )
            and on (cluster, Hostname, UUID)
          watchkeeper:gpu_new_xid:code"""


def xid_rules() -> str:
    groups: dict[tuple[str, str], list[xid.XidRow]] = defaultdict(list)
    for row in xid.all_codes():
        if row.severity is Severity.CRITICAL:
            groups[row.cause, _own_action(row)].append(row)
    # Known causes first.
    alerts = [
        _hardware_alert(cause, action, rows)
        for (cause, action), rows in sorted(groups.items(), key=lambda item: (item[0][0] == UNKNOWN_CAUSE, item[0]))
    ]
    return HEAD + "".join(alerts) + _application_alert()


def _own_action(row: xid.XidRow) -> str:
    """The catalogue's action where the cause's next step does not fit the code; else empty."""
    return row.action if row.cause == UNKNOWN_CAUSE or row.scope == "process" else ""


def _hardware_alert(cause: str, own_action: str, rows: list[xid.XidRow]) -> str:
    cause_row = causes.lookup(cause)
    summary = f"{GPU} reports Xid {{{{ $value }}}}" if cause == UNKNOWN_CAUSE else cause_row.headline(GPU, NODE)
    action = cause_row.advice(GPU, NODE).removesuffix(".")
    if own_action == "investigate":
        likely = "; ".join(f"{row.code} {row.likely_cause}" for row in rows)
        action = f"Inspect {NODE} for the likely cause ({likely})"
    elif own_action:
        action = f"{ACTION_TEXTS[own_action][0].upper()}{ACTION_TEXTS[own_action][1:]}"
    return ALERT.format(
        name="GPUHardwareFailure",
        expr=_any_code("watchkeeper:gpu_new_xid:code", (row.code for row in rows)),
        severity="critical",
        cause=cause,
        # Alerts of one name need different labels, or promtool calls them duplicates.
        resolution=f"\n          resolution: {own_action}" if own_action else "",
        summary=summary,
        codes=_listed(rows),
        action=action,
        runbook=cause_row.runbook,
    )


def _application_alert() -> str:
    row = causes.lookup("app_illegal_access")
    codes = _any_code("DCGM_FI_DEV_XID_ERRORS", APPLICATION_CODES).replace("\n", "\n  ")
    return ALERT.format(
        name="GPUApplicationError",
        expr=APPLICATION_EXPR.format(codes=codes),
        severity=row.severity,
        cause=row.cause,
        resolution="",
        summary=f"A program on {GPU} failed with Xid {{{{ $value }}}}",
        codes=_listed(map(xid.lookup, APPLICATION_CODES)),
        action=row.advice(GPU, NODE).removesuffix("."),
        runbook=row.runbook,
    )


def _any_code(series: str, codes: Iterable[int]) -> str:
    return "\n            or ".join(f"{series} == {code}" for code in codes)


def _listed(rows: Iterable[xid.XidRow]) -> str:
    return ";\n            ".join(f"{row.code} {row.name}" for row in rows)
