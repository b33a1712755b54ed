"""Native histograms for properties: small whole counts, so that sums are exact."""

from __future__ import annotations

from hypothesis import strategies as st

from watchkeeper.model.histograms import CUSTOM, Buckets, Histogram, ResetHint

counts = st.integers(0, 50).map(float)
sums = st.integers(-1000, 1000).map(float)


def buckets(lowest: int, highest: int) -> st.SearchStrategy[Buckets]:
    spans = st.dictionaries(st.integers(lowest, highest), counts, max_size=6)
    return spans.map(lambda each: tuple(sorted(each.items())))


@st.composite
def exponential(draw: st.DrawFn, hints: tuple[ResetHint, ...] = tuple(ResetHint)) -> Histogram:
    schema = draw(st.integers(-2, 4))
    positive, negative = draw(buckets(1, 30)), draw(buckets(1, 30))
    zero_count = draw(counts)
    return Histogram(
        schema=schema,
        count=zero_count + sum(count for _, count in positive + negative),
        sum=draw(sums),
        # Below every bucket of any schema, so that nothing lies inside.
        zero_threshold=draw(st.sampled_from([0.0, 0.001, 0.5])),
        zero_count=zero_count,
        positive=positive,
        negative=negative,
        hint=draw(st.sampled_from(hints)),
    )


@st.composite
def custom(draw: st.DrawFn, hints: tuple[ResetHint, ...] = tuple(ResetHint)) -> Histogram:
    bounds = tuple(sorted(draw(st.sets(st.sampled_from([-10.0, -1.0, 0.0, 0.3, 5.0, 7.0, 100.0]), max_size=5))))
    positive = draw(buckets(0, len(bounds)))
    return Histogram(
        schema=CUSTOM,
        count=sum(count for _, count in positive),
        sum=draw(sums),
        positive=positive,
        bounds=bounds,
        hint=draw(st.sampled_from(hints)),
    )


histograms = exponential() | custom()
