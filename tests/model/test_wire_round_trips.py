"""Every model value that is sent as JSON is read back as the same value."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

import watchkeeper.model
from tests.model import strategies
from tests.properties import examples
from watchkeeper.kit import wire
from watchkeeper.model import alerts, exemplars, histograms, samples

# These carry a label set, which travels in Prometheus' own shape and not through `kit.wire`.
TRAVEL_OTHERWISE = {alerts.Alert, exemplars.Exemplar, histograms.HistogramSample, samples.Sample}


def nouns() -> list[type]:
    modules = [
        importlib.import_module(f"watchkeeper.model.{module.name}")
        for module in pkgutil.iter_modules(watchkeeper.model.__path__)
    ]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if dataclasses.is_dataclass(value) and isinstance(value, type) and value.__module__ == module.__name__
    ]


@pytest.mark.parametrize("kind", [kind for kind in nouns() if kind not in TRAVEL_OTHERWISE], ids=lambda k: k.__name__)
@examples(20)
@given(draw=st.data())
def test_a_value_survives_the_wire(kind: type, draw: st.DataObject) -> None:
    value = draw.draw(strategies.any_of(kind))
    assert wire.loads(kind, wire.dumps(value)) == value


@pytest.mark.parametrize("kind", nouns(), ids=lambda kind: kind.__name__)
def test_a_model_class_is_frozen_and_has_slots(kind: type) -> None:
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert "__slots__" in vars(kind)
