// Several quantities on one clock: a band per quantity, one time axis, and what happened drawn through all of them.

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { clock, day, quantity } from "./format";
import { now, range, type Points } from "./hub";

export interface Strip { label: string; unit: string; expr: string; tone?: "accent" | "ok" | "dim" }
export interface Mark { at: string; label: string; tone: string }
const BAND = 46, AXIS = 26, TOP = 28;

export function Strips(p: { strips: Strip[]; start: number; end: number; marks: Mark[]; theme: string; id: string; band?: number }) {
  const box = useRef<HTMLDivElement>(null), plot = useRef<uPlot | null>(null), marks = useRef(p.marks);
  const [found, keep] = useState<Found | null>(null);
  const [problem, complain] = useState("");
  const [shown, show] = useState<number | null>(null);
  const from = Math.floor(p.start / 15000) * 15, until = Math.floor(p.end / 5000) * 5;
  const exprs = p.strips.map((s) => s.expr).join("\n"), band = p.band ?? BAND;
  marks.current = p.marks;

  useEffect(() => {
    let current = true;
    read(p.strips, from, until).then(
      (answer) => { if (current) { keep(answer); complain(""); } },
      (error) => current && complain(error.message),
    );
    return () => { current = false; };
  }, [exprs, from, until]);

  const { start, end, step } = found ?? { start: from, end: until, step: 15 };
  const times = Array.from({ length: Math.max(1, Math.floor((end - start) / step) + 1) }, (_, i) => start + i * step);
  const table = found?.lines.map((points) => times.map((at) => points.get(at) ?? null));
  useEffect(() => {
    if (!table || !box.current) return;
    const css = getComputedStyle(document.documentElement), ink = (name: string) => css.getPropertyValue(`--${name}`);
    const host = box.current, height = p.strips.length * band + AXIS + TOP;
    const scales: uPlot.Scales = { x: { time: true, range: () => [start, end] } };
    p.strips.forEach((_, i) => { scales[`s${i}`] = { range: (_u, low, high) => inBand(low, high, i, p.strips.length) }; });
    plot.current = new uPlot({
      width: host.clientWidth, height, scales, padding: [TOP, 0, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      series: [{}, ...p.strips.map((s, i) => ({ scale: `s${i}`, stroke: ink(s.tone ?? "accent"), width: 1.4, points: { show: false }, spanGaps: false }))],
      axes: [{ stroke: ink("dim"), size: AXIS, font: "11px system-ui, sans-serif", grid: { show: false }, ticks: { stroke: ink("line"), size: 4 }, values: (u, splits) => splits.map((s) => {
        const x = u.valToPos(s, "x");
        // Where days pass, the time of day says nothing.
        const text = end - start > 129600 ? day(new Date(s * 1000).toISOString()).slice(5, 10) : clock(s * 1000).slice(0, s % 60 ? 8 : 5);
        return x < 26 || x > u.bbox.width / devicePixelRatio - 26 ? "" : text;
      }) }],
      hooks: {
        draw: [(u) => drawMarks(u, marks.current, ink)],
        setCursor: [(u) => show(u.cursor.idx ?? null)],
      },
    }, [times, ...table] as uPlot.AlignedData, host);
    const watch = new ResizeObserver(() => plot.current?.setSize({ width: host.clientWidth, height }));
    watch.observe(host);
    return () => { watch.disconnect(); plot.current?.destroy(); };
  }, [found, p.theme, exprs]);
  useEffect(() => plot.current?.redraw(false), [JSON.stringify(p.marks)]);

  return (
    <div class="strips" data-testid={p.id} data-ready={found ? "yes" : "no"}>
      {problem && <p class="problem" role="alert">No chart: {problem}</p>}
      <div class="labels" style={{ paddingTop: `${TOP}px` }}>
        {p.strips.map((s, i) => {
          const row = table?.[i] ?? [], last = row.findLastIndex((v) => v != null);
          // A reading that is no longer made must not look like one of now.
          const past = shown == null && last >= 0 && times[last] < Math.min(end, now() / 1000) - Math.max(60, 3 * step);
          return <div key={s.label} style={{ height: `${band}px` }}><span class={`key ${s.tone ?? "accent"}`} />{s.label}<b>{found && `${past ? "was " : ""}${quantity(row[shown ?? last], s.unit)}`}</b></div>;
        })}
      </div>
      <div class="plot" ref={box} style={{ minHeight: `${p.strips.length * band + AXIS + TOP}px` }}>
        {!found && !problem && <div class="bone" style={{ height: `${p.strips.length * band}px` }} />}
        {shown != null && times[shown] && <span class="at">{clock(times[shown] * 1000)}</span>}
      </div>
    </div>
  );
}

interface Found { lines: Points[]; start: number; end: number; step: number }
/** All strips over a time; where most of it has no reading yet (a young hub), only the part that has. */
async function read(strips: Strip[], from: number, end: number): Promise<Found> {
  const ask = async (start: number): Promise<Found> => {
    const step = Math.max(1, Math.ceil((end - start) / 240));
    start = end - Math.ceil((end - start) / step) * step;
    return { lines: await Promise.all(strips.map((s) => range(s.expr, start, end, step))), start, end, step };
  };
  const found = await ask(from);
  const first = Math.min(...found.lines.flatMap((points) => [...points.keys()].slice(0, 1)));
  return Number.isFinite(first) && first > from + 0.3 * (end - from) ? ask(Math.max(from, Math.min(first - found.step, end - 120))) : found;
}

/** A scale on which [low, high] fills only band `i` of `n`, with a little air above and below. */
function inBand(low: number | null, high: number | null, i: number, n: number): [number, number] {
  let from = Math.min(0, low ?? 0), to = high ?? 1;
  if (low != null && high != null && low > 0 && (high - low) / high < 0.5 && low / high > 0.5) from = low - (high - low || high) * 0.4;
  if (to <= from) to = from + 1;
  const reach = (to - from) / 0.72, bottom = from - reach * 0.14;
  return [bottom - (n - 1 - i) * reach, bottom + (i + 1) * reach];
}

function drawMarks(u: uPlot, marks: Mark[], ink: (name: string) => string): void {
  const { left, top, width, height } = u.bbox, pen = u.ctx, sharp = devicePixelRatio || 1;
  pen.save();
  pen.font = `${11 * sharp}px system-ui, sans-serif`;
  pen.textAlign = "left";
  pen.textBaseline = "top";
  const ends = [0, 0];
  for (const mark of [...marks].sort((a, b) => a.at.localeCompare(b.at))) {
    const x = Math.round(u.valToPos(Date.parse(mark.at) / 1000, "x", true));
    if (x < left || x > left + width) continue;
    pen.strokeStyle = pen.fillStyle = ink(mark.tone);
    pen.setLineDash([4 * sharp, 3 * sharp]);
    pen.lineWidth = 1.3 * sharp;
    pen.beginPath(); pen.moveTo(x, top - (TOP - 2) * sharp); pen.lineTo(x, top + height); pen.stroke();
    const long = pen.measureText(mark.label).width, flip = x + long + 8 * sharp > left + width;
    const at = flip ? x - long - 5 * sharp : x + 5 * sharp, row = ends.findIndex((end) => end <= at);
    if (row < 0) continue;
    pen.fillText(mark.label, at, top + (13 * row - TOP + 1) * sharp);
    ends[row] = at + long + 6 * sharp;
  }
  pen.restore();
}
