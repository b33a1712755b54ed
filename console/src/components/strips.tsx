// PromQL series on one time axis: a band for each, with event marks across all bands.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type Points, queryRanges } from "../lib/api";
import type { Mark, Strip } from "../lib/lines";
import { Chart } from "./chart";

/** `start` and `end` are in milliseconds; `omitsEmpty` omits strips without samples. */
export function Strips(p: {
  strips: Strip[];
  start: number;
  end: number;
  marks: Mark[];
  theme: string;
  id: string;
  band?: number;
  name?: string;
  omitsEmpty?: boolean;
  zoom?: (from: number, until: number) => void;
}) {
  const [loaded, setLoaded] = useState<LoadedStrips | null>(null);
  const [problem, setProblem] = useState("");
  const from = Math.floor(p.start / 15000) * 15;
  const until = Math.floor(p.end / 5000) * 5;
  const exprs = p.strips.map((s) => s.expr).join("\n");
  const loadingExprs = useRef("");
  useEffect(
    () => () => {
      loadingExprs.current = "gone";
    },
    [],
  );
  useEffect(() => {
    // One request at a time: if the hub is slow, the next request starts after this answer.
    if (
      loadingExprs.current === exprs ||
      (loaded?.exprs === exprs && loaded.requestedFrom === from && loaded.requestedUntil === until)
    )
      return;
    loadingExprs.current = exprs;
    const previous = loaded?.exprs === exprs ? loaded : null;
    const finish = (apply: () => void) => {
      if (loadingExprs.current === exprs) {
        loadingExprs.current = "";
        apply();
      }
    };
    (previous && canExtend(previous, from, until)
      ? extend(previous, p.strips, from, until)
      : loadRange(p.strips, from, until)
    ).then(
      (answer) =>
        finish(() => {
          setLoaded({ ...answer, exprs, requestedFrom: from, requestedUntil: until });
          setProblem("");
        }),
      (error) => finish(() => setProblem(error.message)),
    );
  }, [exprs, from, until, loaded]);
  const current = loaded?.exprs === exprs ? loaded : null;
  const { times, lines } = useMemo(() => alignLines(p.strips, current, Boolean(p.omitsEmpty)), [current, exprs]);
  const chart = (
    <Chart
      id={p.id}
      name={p.name ?? p.strips.map((s) => s.label).join(", ")}
      bands
      times={current ? times : undefined}
      lines={lines}
      start={current?.start ?? from}
      end={current?.end ?? until}
      marks={p.marks}
      theme={p.theme}
      height={p.band}
      problem={problem}
      zoom={p.zoom}
    />
  );
  return current && lines.length === 0 ? (
    <>
      <p class="dim">No samples in this time range.</p>
      {chart}
    </>
  ) : (
    chart
  );
}

/** Whether only the newest samples are missing: to load only them costs the hub a hundredth. */
const canExtend = (loaded: LoadedStrips, from: number, until: number) =>
  until >= loaded.end &&
  until - loaded.end < (loaded.end - loaded.start) / 4 &&
  from >= loaded.requestedFrom &&
  from - loaded.requestedFrom < 2 * (until - loaded.end) + 30;
async function extend(loaded: LoadedStrips, strips: Strip[], from: number, until: number): Promise<LoadedRange> {
  // Load the last step again: its sample may have arrived after the previous request.
  const lastStart = loaded.end - loaded.step;
  const end = loaded.end + Math.floor((until - loaded.end) / loaded.step) * loaded.step;
  if (end === loaded.end) return loaded;
  const newPoints = await queryRanges(
    strips.map((s) => s.expr),
    lastStart,
    end,
    loaded.step,
  );
  const start = Math.max(loaded.start, end - Math.ceil((until - from) / loaded.step) * loaded.step);
  const lines = loaded.lines.map((points, i) => new Map([...points, ...newPoints[i]].filter(([at]) => at >= start)));
  return { lines, start, end, step: loaded.step };
}

interface LoadedRange {
  lines: Points[];
  start: number;
  end: number;
  step: number;
}
/** Loaded samples, with the expressions and the range that were requested. */
interface LoadedStrips extends LoadedRange {
  exprs: string;
  requestedFrom: number;
  requestedUntil: number;
}
function alignLines(strips: Strip[], loaded: LoadedStrips | null, omitsEmpty: boolean) {
  const { start, end, step } = loaded ?? { start: 0, end: 0, step: 1 };
  const times = Array.from({ length: Math.max(1, Math.floor((end - start) / step) + 1) }, (_, i) => start + i * step);
  const shownStrips = strips
    .map((s, i) => ({ ...s, points: loaded?.lines[i] }))
    .filter((s) => !omitsEmpty || !loaded || (s.points?.size ?? 0) > 0);
  let group: string | undefined;
  return {
    times,
    lines: shownStrips.map((s) => {
      const heading = s.group === group ? undefined : s.group;
      group = s.group;
      return {
        label: s.label,
        unit: s.unit,
        tone: s.tone,
        group: heading,
        values: times.map((at) => s.points?.get(at) ?? null),
      };
    }),
  };
}

/** Load all strips; if most of the range has no samples yet (new hub), load only the part with samples. */
async function loadRange(strips: Strip[], from: number, end: number): Promise<LoadedRange> {
  const loadFrom = async (start: number) => {
    const step = Math.max(1, Math.ceil((end - start) / 240));
    start = end - Math.ceil((end - start) / step) * step;
    return {
      lines: await queryRanges(
        strips.map((s) => s.expr),
        start,
        end,
        step,
      ),
      start,
      end,
      step,
    };
  };
  const range = await loadFrom(from);
  const firstSample = Math.min(...range.lines.flatMap((points) => [...points.keys()].slice(0, 1)));
  return Number.isFinite(firstSample) && firstSample > from + 0.3 * (end - from)
    ? loadFrom(Math.max(from, Math.min(firstSample - range.step, end - 120)))
    : range;
}
