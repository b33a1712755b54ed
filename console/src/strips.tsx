// Several quantities on one clock: a band per quantity, one time axis, and what happened drawn through all of them.

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { clock, quantity } from "./format";
import { range, type Points } from "./hub";

export interface Strip { label: string; unit: string; expr: string; tone?: "accent" | "ok" | "dim" }
export interface Mark { at: string; label: string; tone: string }
const BAND = 46, AXIS = 26, TOP = 28;

export function Strips(p: { strips: Strip[]; start: number; end: number; marks: Mark[]; theme: string; id: string; band?: number }) {
  const box = useRef<HTMLDivElement>(null), plot = useRef<uPlot | null>(null), marks = useRef(p.marks);
  const [lines, keep] = useState<Points[] | null>(null);
  const [problem, complain] = useState("");
  const [shown, show] = useState<number | null>(null);
  const step = Math.max(1, Math.ceil((p.end - p.start) / 1000 / 240));
  const start = Math.floor(p.start / 1000 / step) * step, end = Math.floor(p.end / 1000 / step) * step;
  const exprs = p.strips.map((s) => s.expr).join("\n"), band = p.band ?? BAND;
  marks.current = p.marks;

  useEffect(() => {
    let current = true;
    Promise.all(p.strips.map((s) => range(s.expr, start, end, step))).then(
      (found) => { if (current) { keep(found); complain(""); } },
      (error) => current && complain(error.message),
    );
    return () => { current = false; };
  }, [exprs, start, end]);

  const times = Array.from({ length: Math.max(1, Math.floor((end - start) / step) + 1) }, (_, i) => start + i * step);
  const table = lines?.map((points) => times.map((at) => points.get(at) ?? null));
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
        return x < 26 || x > u.bbox.width / devicePixelRatio - 26 ? "" : clock(s * 1000).slice(0, s % 60 ? 8 : 5);
      }) }],
      hooks: {
        draw: [(u) => drawMarks(u, marks.current, ink)],
        setCursor: [(u) => show(u.cursor.idx ?? null)],
      },
    }, [times, ...table] as uPlot.AlignedData, host);
    const watch = new ResizeObserver(() => plot.current?.setSize({ width: host.clientWidth, height }));
    watch.observe(host);
    return () => { watch.disconnect(); plot.current?.destroy(); };
  }, [lines, p.theme, exprs]);
  useEffect(() => plot.current?.redraw(false), [JSON.stringify(p.marks)]);

  return (
    <div class="strips" data-testid={p.id} data-ready={lines ? "yes" : "no"}>
      {problem && <p class="problem" role="alert">No chart: {problem}</p>}
      <div class="labels" style={{ paddingTop: `${TOP}px` }}>
        {p.strips.map((s, i) => {
          const row = table?.[i], last = row?.findLast((v) => v != null);
          const value = shown != null && row ? row[shown] : last;
          return <div key={s.label} style={{ height: `${band}px` }}><span class={`key ${s.tone ?? "accent"}`} />{s.label}<b>{lines ? quantity(value, s.unit) : ""}</b></div>;
        })}
      </div>
      <div class="plot" ref={box} style={{ minHeight: `${p.strips.length * band + AXIS + TOP}px` }}>
        {!lines && !problem && <div class="bone" style={{ height: `${p.strips.length * band}px` }} />}
        {shown != null && times[shown] && <span class="at">{clock(times[shown] * 1000)}</span>}
      </div>
    </div>
  );
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
    const row = Math.max(0, ends.findIndex((end) => end <= (flip ? x - long - 5 * sharp : x)));
    const at = flip ? x - long - 5 * sharp : x + 5 * sharp;
    pen.fillText(mark.label, at, top + (13 * row - TOP + 1) * sharp);
    ends[row] = at + long + 6 * sharp;
  }
  pen.restore();
}
