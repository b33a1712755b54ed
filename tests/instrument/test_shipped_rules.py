"""The shipped rules work on what the monitors export: same names, same labels, and the alerts that belong to them."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest

import watchkeeper
from tests.instrument import pages
from watchkeeper.instrument.exports import Exports
from watchkeeper.instrument.inference import InferenceMonitor
from watchkeeper.instrument.placement import Placement
from watchkeeper.instrument.training import ModelCost, TrainingMonitor
from watchkeeper.model.samples import Sample
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.query.promql import parser, walk
from watchkeeper.rules import rulefile
from watchkeeper.sim.simulation import SimSettings, Simulation
from watchkeeper.store.head.head import Head

RULES = rulefile.load_rules(sorted((Path(watchkeeper.__file__).parent / "packs" / "rules").glob("*.yaml"))).rules
OURS = ("training_", "inference_")
# What the scrape adds, what the mapping of other servers adds (packs/rules/serving.yaml), and PyTorch's count of
# out-of-memory errors, which is there where PyTorch uses a GPU.
ADDED_LABELS = frozenset({"__name__", "cluster", "instance", "job", "server"})
ON_A_GPU = frozenset({"training_cuda_ooms_total"})


@cache
def written() -> dict[str, set[str]]:
    """Labels of every series that the monitors of a whole program write, by name."""
    place = Placement(0, 2, node="gpu-7", gpu="0", uuid="GPU-8a")
    training = TrainingMonitor("llama", Exports(), place=place, cost=ModelCost(1e12, flops_per_token=1e9))
    for batch in training.batches(range(30)):
        training.step(loss=math.nan if batch else 1.0, grad_norm=1.0, learning_rate=1e-3, samples=1, tokens=1)
    training.report(validation_loss=1.0, epoch=1)
    with training.checkpoint():
        pass
    serving = InferenceMonitor("llama", "3", Exports())
    with serving.request() as request:
        with request.queueing():
            pass
        request.record_tokens(prompt_tokens=1, generated_tokens=2)
        request.record_piece()
    labels_by_series: dict[str, set[str]] = {}
    for labels in (*pages.series(training), *pages.series(serving)):
        labels_by_series.setdefault(labels["__name__"], set()).update(dict(labels))
    return labels_by_series


def list_labels_of_rules() -> dict[str, set[str]]:
    """What the rules ask of names that are ours: label names in their selectors."""
    labels_by_series: dict[str, set[str]] = {}
    for rule in RULES:
        for selector in walk.selectors(parser.parse(rule.expr)):
            if selector.name and selector.name.startswith(OURS) and selector.name not in ON_A_GPU:
                labels_by_series.setdefault(selector.name, set()).update(matcher.name for matcher in selector.matchers)
    return labels_by_series


def test_the_rules_use_many_of_the_exported_series() -> None:
    assert len(list_labels_of_rules()) >= 15


@pytest.mark.parametrize("name", sorted(list_labels_of_rules()))
def test_a_series_of_a_rule_is_exported_with_the_labels_of_the_rule(name: str) -> None:
    assert name in written()
    assert list_labels_of_rules()[name] <= written()[name] | ADDED_LABELS


def alerting(engine: EmbeddedEngine, alert: str, at_ms: int) -> bool:
    (rule,) = [rule for rule in RULES if rule.name == alert]
    return bool(engine.instant(rule.expr, at_ms).latest())


def test_a_loss_that_is_not_finite_fires_the_alert() -> None:
    engine, monitor = EmbeddedEngine(Head()), TrainingMonitor("llama", Exports(), place=Placement())
    for at_ms, loss in ((0, 1.0), (15_000, math.nan)):
        monitor.step(loss=loss)
        rows = pages.series(monitor).items()
        engine.appender.append(Sample(labels.with_labels(cluster="main"), at_ms, value) for labels, value in rows)
        assert alerting(engine, "TrainingLossNotFinite", at_ms) == math.isnan(loss)


def test_a_failed_checkpoint_fires_the_alert() -> None:
    engine, monitor = EmbeddedEngine(Head()), TrainingMonitor("llama", Exports(), place=Placement())
    for at_ms in (0, 15_000):
        rows = pages.series(monitor).items()
        engine.appender.append(Sample(labels.with_labels(cluster="main"), at_ms, value) for labels, value in rows)
        assert alerting(engine, "CheckpointFailing", at_ms) == (at_ms > 0)
        with pytest.raises(OSError, match="full"), monitor.checkpoint():
            raise OSError("full")


def test_the_program_of_the_simulator_exports_what_our_monitor_does() -> None:
    monitor = InferenceMonitor("chat", "1", Exports())
    with monitor.request() as request, request.queueing():
        pass
    names = {labels["__name__"]: set(dict(labels)) for labels in pages.series(monitor)}
    simulation = Simulation(SimSettings(gpus=64))
    server = next(server for server in simulation.serving() if server.kind == "program")
    simulated = pages.read(server.page())
    assert {labels["__name__"] for labels in simulated} <= set(names)
    assert all(set(dict(labels)) <= names[labels["__name__"]] for labels in simulated)
