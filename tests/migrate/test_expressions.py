"""Somebody else's PromQL: what works, what another exporter makes, what changes and how, and what cannot be."""

from __future__ import annotations

import pytest

from tests.support.paths import SHARED
from watchkeeper.catalogue import pack, series
from watchkeeper.migrate import expression
from watchkeeper.migrate.expression import Compatibility
from watchkeeper.query.promql import parser, walk
from watchkeeper.readers import grafana_dashboard

CORPUS = SHARED / "corpus" / "dashboards" / "expressions.txt"


@pytest.mark.parametrize(
    ("expr", "standing", "said"),
    [
        ("DCGM_FI_DEV_GPU_TEMP > 85", Compatibility.WORKS, ""),
        ('avg by (gpu, Hostname) (DCGM_FI_DEV_GPU_UTIL{instance=~".*"})', Compatibility.WORKS, ""),
        ("DCGM_FI_DEV_GPU_TEMP_CELSIUS", Compatibility.CHANGES, "write DCGM_FI_DEV_GPU_TEMP"),
        ("nvidia_smi_utilization_gpu_ratio > 0.9", Compatibility.CHANGES, "write DCGM_FI_DEV_GPU_UTIL / 100"),
        # What the guides ask for and nobody has.
        ("DCGM_FI_DEV_RETIRED_PAGES > 100", Compatibility.CANNOT, "DCGM_FI_DEV_RETIRED_SBE"),
        ("DCGM_FI_DEV_TENSOR_ACTIVE", Compatibility.CANNOT, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
        ("max by (uuid) (DCGM_FI_DEV_GPU_UTIL)", Compatibility.CHANGES, "label uuid: use UUID here"),
        ('DCGM_FI_DEV_GPU_UTIL{exported_pod="a"}', Compatibility.CHANGES, "label exported_pod: use pod here"),
        ("increase(DCGM_FI_DEV_XID_ERRORS[5m]) > 0", Compatibility.CHANGES, "the code of the last Xid, not a count"),
        ("rate(DCGM_FI_PROF_PCIE_TX_BYTES[5m])", Compatibility.CHANGES, "bytes per second already"),
        ("node_load1 / 2", Compatibility.NEEDS, "node_load1 is exported by node_exporter"),
        ("time() - time() offset 1h", Compatibility.CANNOT, "not PromQL"),
        ("increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[1h]) > 0", Compatibility.WORKS, ""),
    ],
)
def test_an_expression_is_judged_by_its_series_labels_and_meaning(
    expr: str, standing: Compatibility, said: str
) -> None:
    judged = expression.judge_expression(expr)
    assert judged.compatibility is standing, judged
    assert said in "; ".join(judged.why)


def test_what_their_own_rules_record_is_known() -> None:
    assert expression.judge_expression("gpu:busy").compatibility is Compatibility.NEEDS
    assert (
        expression.judge_expression("gpu:busy", {"gpu:busy": parser.parse("up")}).compatibility is Compatibility.WORKS
    )


def test_every_part_of_an_expression_is_looked_through() -> None:
    text = "topk(scalar(a), sum by (x) (rate(b[5m])) + -c) or (max_over_time(d[1h:1m])) and on () {job='e'}"
    assert walk.metric_names(parser.parse(text)) == {"a", "b", "c", "d", ""}


def test_whatever_is_named_instead_of_theirs_is_a_question_that_works_here() -> None:
    instead = pack.load(series.ALIASES, lambda cells: cells["instead"])
    assert len(instead) > 50
    for text in instead:
        assert expression.judge_expression(text).compatibility is Compatibility.WORKS, text
        assert walk.metric_names(parser.parse(text)) != {""}


@pytest.mark.skipif(not CORPUS.exists(), reason="the corpus of public dashboards is not here")
def test_public_dashboards_fare_as_measured() -> None:
    """A measure, not a promise: of GPU questions that are PromQL at all, few cannot be answered."""
    lines = [line.split("\t") for line in CORPUS.read_text().splitlines() if not line.startswith("#")]
    exprs = {
        line[3] for line in lines if len(line) > 3 and "DCGM_FI_" in line[3] and not line[3].startswith("TEMPLATE")
    }
    found = [expression.judge_expression(grafana_dashboard.fill_variables(expr)) for expr in exprs]
    # 144 of 300 are VictoriaMetrics' own language, all but six of them of one dashboard.
    promql = [judged.compatibility for judged in found if not "".join(judged.why).startswith("not PromQL")]
    assert len(promql) > 150
    assert promql.count(Compatibility.CANNOT) / len(promql) < 0.05
