"""PromQL over numbers of your own, in one process: `python examples/03_query_your_own_samples.py`."""

from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.query.engine import QueryRange
from watchkeeper.store.head.head import Head

engine = EmbeddedEngine(Head())
for node, joules_per_minute in (("n1", 42_000), ("n2", 18_000)):
    labels = Labels({"__name__": "energy_joules_total", "node": node})
    engine.appender.append(Sample(labels, minute * 60_000, float(minute * joules_per_minute)) for minute in range(11))

answer = engine.instant("rate(energy_joules_total[5m])", at_ms=600_000)
for labels, watts in answer.latest().items():
    print(f"{labels['node']}: {watts:.0f} W")

total = engine.range("sum(rate(energy_joules_total[5m]))", QueryRange(300_000, 600_000, 60_000))
for _, times_ms, values in total.frame.rows():
    print(", ".join(f"{at // 60_000} min {watts:.0f} W" for at, watts in zip(times_ms, values, strict=True)))
