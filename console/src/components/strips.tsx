// Several PromQL series on one time axis: a band each, with events drawn through all of
// them.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type Points, ranges } from "../lib/api";
import type { Mark, Strip } from "../lib/lines";
import { Chart } from "./chart";

/**
 * `start` and `end` in milliseconds; with `quiet` a strip without samples is omitted.
 */
export function Strips(p: {
  strips: Strip[];
  start: number;
  end: number;
  marks: Mark[];
  theme: string;
  id: string;
  band?: number;
  name?: string;
  quiet?: boolean;
  zoom?: (from: number, until: number) => void;
}) {
  const [found, keep] = useState<Found | null>(null);
  const [problem, complain] = useState("");
  const from = Math.floor(p.start / 15000) * 15;
  const until = Math.floor(p.end / 5000) * 5;
  const exprs = p.strips.map((s) => s.expr).join("\n");
  const busy = useRef("");
  useEffect(
    () => () => {
      busy.current = "gone";
    },
    [],
  );
  useEffect(() => {
    // The answer that is on its way comes first, however slow the hub is; the next question follows it.
    if (busy.current === exprs || (found?.exprs === exprs && found.asked === from && found.upto === until)) return;
    busy.current = exprs;
    const before = found?.exprs === exprs ? found : null;
    const came = (use: () => void) => {
      if (busy.current === exprs) {
        busy.current = "";
        use();
      }
    };
    (before && follows(before, from, until) ? extend(before, p.strips, from, until) : read(p.strips, from, until)).then(
      (answer) =>
        came(() => {
          keep({ ...answer, exprs, asked: from, upto: until });
          complain("");
        }),
      (error) => came(() => complain(error.message)),
    );
  }, [exprs, from, until, found]);
  const known = found?.exprs === exprs ? found : null;
  const { times, lines } = useMemo(() => aligned(p.strips, known, Boolean(p.quiet)), [known, exprs]);
  const drawn = (
    <Chart
      id={p.id}
      name={p.name ?? p.strips.map((s) => s.label).join(", ")}
      bands
      times={known ? times : undefined}
      lines={lines}
      start={known?.start ?? from}
      end={known?.end ?? until}
      marks={p.marks}
      theme={p.theme}
      height={p.band}
      problem={problem}
      zoom={p.zoom}
    />
  );
  return known && lines.length === 0 ? (
    <>
      <p class="dim">No samples in this time range.</p>
      {drawn}
    </>
  ) : (
    drawn
  );
}

/** Whether only the newest readings are missing: then only they are asked for, which costs the hub a hundredth. */
const follows = (old: Found, from: number, until: number) =>
  until >= old.end &&
  until - old.end < (old.end - old.start) / 4 &&
  from >= old.asked &&
  from - old.asked < 2 * (until - old.end) + 30;
async function extend(old: Found, strips: Strip[], from: number, until: number): Promise<Answer> {
  // The newest reading may have come after its time was asked for.
  const last = old.end - old.step;
  const end = old.end + Math.floor((until - old.end) / old.step) * old.step;
  if (end === old.end) return old;
  const fresh = await ranges(
    strips.map((s) => s.expr),
    last,
    end,
    old.step,
  );
  const start = Math.max(old.start, end - Math.ceil((until - from) / old.step) * old.step);
  const lines = old.lines.map((points, i) => new Map([...points, ...fresh[i]].filter(([at]) => at >= start)));
  return { lines, start, end, step: old.step };
}

interface Answer {
  lines: Points[];
  start: number;
  end: number;
  step: number;
}
/** An answer, and what it answers. */
interface Found extends Answer {
  exprs: string;
  asked: number;
  upto: number;
}
function aligned(strips: Strip[], found: Found | null, quiet: boolean) {
  const { start, end, step } = found ?? { start: 0, end: 0, step: 1 };
  const times = Array.from({ length: Math.max(1, Math.floor((end - start) / step) + 1) }, (_, i) => start + i * step);
  const kept = strips
    .map((s, i) => ({ ...s, points: found?.lines[i] }))
    .filter((s) => !quiet || !found || (s.points?.size ?? 0) > 0);
  let group: string | undefined;
  return {
    times,
    lines: kept.map((s) => {
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

/** All strips over a time; where most of it has no reading yet (a young hub), only the part that has. */
async function read(strips: Strip[], from: number, end: number): Promise<Answer> {
  const ask = async (start: number) => {
    const step = Math.max(1, Math.ceil((end - start) / 240));
    start = end - Math.ceil((end - start) / step) * step;
    return {
      lines: await ranges(
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
  const found = await ask(from);
  const first = Math.min(...found.lines.flatMap((points) => [...points.keys()].slice(0, 1)));
  return Number.isFinite(first) && first > from + 0.3 * (end - from)
    ? ask(Math.max(from, Math.min(first - found.step, end - 120)))
    : found;
}
