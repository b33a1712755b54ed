// uPlot, set up once for all charts: a clock below, bands or one scale, and what happened drawn through the lines.
// A chunk of its own: the map is on the screen before a chart needs it.

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { aroundAll, inBand, timeLabel } from "./axes";
import { tick } from "./format";
import type { Line, Mark } from "./lines";

export const AXIS = 26,
  TOP = 28,
  SCALE = 54;
export interface Sheet {
  lines: Line[];
  times: number[];
  start: number;
  end: number;
  marks: Mark[];
  bands: boolean;
  height: number;
  zoom?: (from: number, until: number) => void;
  point: (index: number | null) => void;
}
const FONT = "11px system-ui, sans-serif";
const WRITTEN: Record<string, string> = { bad: "bad-text", warn: "warn-text", ok: "ok-text" };
const INTERVAL_SHARE = "2e";

/** Draw into `host`; `sheet()` is read anew at each drawing, so new readings need no new chart. */
export function make(host: HTMLElement, sheet: () => Sheet): uPlot {
  const first = sheet();
  const css = getComputedStyle(document.documentElement);
  const ink = (name: string) => css.getPropertyValue(`--${name}`).trim();
  const scales: uPlot.Scales = { x: { time: true, range: () => [sheet().start, sheet().end] } };
  if (first.bands)
    first.lines.forEach((_, i) => {
      scales[`s${i}`] = { range: (_u, low, high) => inBand(low, high, i, first.lines.length) };
    });
  else scales.y = { range: (_u, low, high) => aroundAll(low, high) };
  const series: uPlot.Series[] = [{}];
  const between: uPlot.Band[] = [];
  first.lines.forEach((line, i) => {
    const scale = first.bands ? `s${i}` : "y";
    const colour = ink(line.tone ?? "accent");
    series.push({
      scale,
      stroke: colour,
      width: 1.4,
      points: { show: false },
      spanGaps: false,
      dash: line.dashed ? [5, 4] : undefined,
    });
    if (line.low && line.high) {
      between.push({ series: [series.length, series.length + 1], fill: colour + INTERVAL_SHARE });
      for (let edge = 0; edge < 2; edge++)
        series.push({ scale, stroke: `${colour}66`, width: 0.6, points: { show: false } });
    }
  });
  const time: uPlot.Axis = {
    stroke: ink("dim"),
    size: AXIS,
    font: FONT,
    grid: { show: false },
    ticks: { stroke: ink("line"), size: 4 },
    // The width of what is written, with air: 03:48:40 where it goes by seconds.
    space: () => (sheet().end - sheet().start < 1200 ? 76 : 50),
    values: (u, splits) =>
      splits
        .map((at) => timeLabel(at, u.valToPos(at, "x"), u.bbox.width / devicePixelRatio, sheet()))
        .map((text, i, all) => (text === all[i - 1] ? "" : text)),
  };
  const level: uPlot.Axis = {
    scale: "y",
    stroke: ink("dim"),
    size: SCALE,
    font: FONT,
    grid: { stroke: ink("line"), width: 1 },
    ticks: { show: false },
    values: (_u, splits) => splits.map((at) => tick(at, first.lines[0]?.unit ?? "")),
  };
  return new uPlot(
    {
      width: Math.max(60, host.clientWidth),
      height: first.height,
      scales,
      series,
      bands: between,
      padding: [first.marks.length || first.bands ? TOP : 10, 0, 0, 0],
      legend: { show: false },
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: Boolean(first.zoom), y: false, setScale: false },
        // One crosshair for all charts of a page: what happened at the same moment stands at the same moment.
        sync: { key: "clock", scales: ["x", null] },
      },
      axes: first.bands ? [time] : [time, level],
      hooks: {
        draw: [(u) => drawMarks(u, sheet().marks, ink)],
        setCursor: [(u) => sheet().point(u.cursor.left != null && u.cursor.left >= 0 ? (u.cursor.idx ?? null) : null)],
        setSelect: [
          (u) => {
            const { left, width } = u.select;
            const { zoom } = sheet();
            if (zoom && width > 4) zoom(u.posToVal(left, "x"), u.posToVal(left + width, "x"));
            u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          },
        ],
      },
    },
    table(first),
    host,
  );
}

export const table = ({ times, lines }: Sheet): uPlot.AlignedData =>
  [
    times,
    ...lines.flatMap((line) => [line.values, ...(line.low && line.high ? [line.high, line.low] : [])]),
  ] as uPlot.AlignedData;

function drawMarks(u: uPlot, marks: Mark[], ink: (name: string) => string): void {
  const { left, top, width, height } = u.bbox;
  const pen = u.ctx;
  const sharp = devicePixelRatio || 1;
  pen.save();
  pen.font = `${11 * sharp}px system-ui, sans-serif`;
  pen.textAlign = "left";
  pen.textBaseline = "top";
  const ends = [0, 0];
  const texts: [string, number, number, string][] = [];
  for (const mark of [...marks].sort((a, b) => a.at.localeCompare(b.at))) {
    const x = Math.round(u.valToPos(Date.parse(mark.at) / 1000, "x", true));
    if (x < left || x > left + width) continue;
    pen.strokeStyle = ink(mark.tone);
    pen.setLineDash([4 * sharp, 3 * sharp]);
    pen.lineWidth = 1.3 * sharp;
    pen.beginPath();
    pen.moveTo(x, top - (TOP - 2) * sharp);
    pen.lineTo(x, top + height);
    pen.stroke();
    const long = pen.measureText(mark.label).width;
    const flip = x + long + 8 * sharp > left + width;
    const at = flip ? x - long - 5 * sharp : x + 5 * sharp;
    const row = ends.findIndex((end) => end <= at);
    if (row < 0) continue;
    texts.push([mark.label, at, top + (13 * row - TOP + 1) * sharp, ink(WRITTEN[mark.tone] ?? mark.tone)]);
    ends[row] = at + long + 6 * sharp;
  }
  // Written last, on a ground of its own, so that no line runs through a word.
  for (const [text, x, y, colour] of texts) {
    pen.fillStyle = ink("panel");
    pen.fillRect(x - 2 * sharp, y - sharp, pen.measureText(text).width + 4 * sharp, 13 * sharp);
    pen.fillStyle = colour;
    pen.fillText(text, x, y);
  }
  pen.restore();
}
