// The uPlot configuration of all charts: time axis, bands or one scale, and event marks. It is a separate bundle, so
// that the fleet map does not wait for it.

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { bandScale, sharedScale, timeLabel } from "./axes";
import { axisLabel } from "./format";
import type { Line, Mark } from "./lines";

export const AXIS = 26,
  TOP = 28,
  SCALE = 54;
export interface PlotInput {
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
const TEXT_COLOURS: Record<string, string> = { bad: "bad-text", warn: "warn-text", ok: "ok-text" };
const INTERVAL_SHARE = "2e";

/** Create a chart in `host`; each redraw reads `readInput()` again, so new samples need no new chart. */
export function createPlot(host: HTMLElement, readInput: () => PlotInput): uPlot {
  const initial = readInput();
  const css = getComputedStyle(document.documentElement);
  const cssColour = (name: string) => css.getPropertyValue(`--${name}`).trim();
  const scales: uPlot.Scales = { x: { time: true, range: () => [readInput().start, readInput().end] } };
  if (initial.bands)
    initial.lines.forEach((_, i) => {
      scales[`s${i}`] = { range: (_u, low, high) => bandScale(low, high, i, initial.lines.length) };
    });
  else scales.y = { range: (_u, low, high) => sharedScale(low, high) };
  const series: uPlot.Series[] = [{}];
  const intervalBands: uPlot.Band[] = [];
  initial.lines.forEach((line, i) => {
    const scale = initial.bands ? `s${i}` : "y";
    const colour = cssColour(line.tone ?? "accent");
    series.push({
      scale,
      stroke: colour,
      width: 1.4,
      points: { show: false },
      spanGaps: false,
      dash: line.dashed ? [5, 4] : undefined,
    });
    if (line.low && line.high) {
      intervalBands.push({ series: [series.length, series.length + 1], fill: colour + INTERVAL_SHARE });
      for (let edge = 0; edge < 2; edge++)
        series.push({ scale, stroke: `${colour}66`, width: 0.6, points: { show: false } });
    }
  });
  const time: uPlot.Axis = {
    stroke: cssColour("dim"),
    size: AXIS,
    font: FONT,
    grid: { show: false },
    ticks: { stroke: cssColour("line"), size: 4 },
    // The width of a label with padding; short ranges have labels with seconds, such as 03:48:40.
    space: () => (readInput().end - readInput().start < 1200 ? 76 : 50),
    values: (u, splits) =>
      splits
        .map((at) => timeLabel(at, u.valToPos(at, "x"), u.bbox.width / devicePixelRatio, readInput()))
        .map((text, i, all) => (text === all[i - 1] ? "" : text)),
  };
  const level: uPlot.Axis = {
    scale: "y",
    stroke: cssColour("dim"),
    size: SCALE,
    font: FONT,
    grid: { stroke: cssColour("line"), width: 1 },
    ticks: { show: false },
    values: (_u, splits) => splits.map((at) => axisLabel(at, initial.lines[0]?.unit ?? "")),
  };
  return new uPlot(
    {
      width: Math.max(60, host.clientWidth),
      height: initial.height,
      scales,
      series,
      bands: intervalBands,
      padding: [initial.marks.length || initial.bands ? TOP : 10, 0, 0, 0],
      legend: { show: false },
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: Boolean(initial.zoom), y: false, setScale: false },
        // All charts of a page share one crosshair.
        sync: { key: "clock", scales: ["x", null] },
      },
      axes: initial.bands ? [time] : [time, level],
      hooks: {
        draw: [(u) => drawMarks(u, readInput().marks, cssColour)],
        setCursor: [
          (u) => readInput().point(u.cursor.left != null && u.cursor.left >= 0 ? (u.cursor.idx ?? null) : null),
        ],
        setSelect: [
          (u) => {
            const { left, width } = u.select;
            const { zoom } = readInput();
            if (zoom && width > 4) zoom(u.posToVal(left, "x"), u.posToVal(left + width, "x"));
            u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          },
        ],
      },
    },
    alignedData(initial),
    host,
  );
}

export const alignedData = ({ times, lines }: PlotInput): uPlot.AlignedData =>
  [
    times,
    ...lines.flatMap((line) => [line.values, ...(line.low && line.high ? [line.high, line.low] : [])]),
  ] as uPlot.AlignedData;

function drawMarks(u: uPlot, marks: Mark[], cssColour: (name: string) => string): void {
  const { left, top, width, height } = u.bbox;
  const context = u.ctx;
  const pixelRatio = devicePixelRatio || 1;
  context.save();
  context.font = `${11 * pixelRatio}px system-ui, sans-serif`;
  context.textAlign = "left";
  context.textBaseline = "top";
  const rowEnds = [0, 0];
  const texts: [string, number, number, string][] = [];
  for (const mark of [...marks].sort((a, b) => a.at.localeCompare(b.at))) {
    const x = Math.round(u.valToPos(Date.parse(mark.at) / 1000, "x", true));
    if (x < left || x > left + width) continue;
    context.strokeStyle = cssColour(mark.tone);
    context.setLineDash([4 * pixelRatio, 3 * pixelRatio]);
    context.lineWidth = 1.3 * pixelRatio;
    context.beginPath();
    context.moveTo(x, top - (TOP - 2) * pixelRatio);
    context.lineTo(x, top + height);
    context.stroke();
    const textWidth = context.measureText(mark.label).width;
    const isFlipped = x + textWidth + 8 * pixelRatio > left + width;
    const at = isFlipped ? x - textWidth - 5 * pixelRatio : x + 5 * pixelRatio;
    const row = rowEnds.findIndex((end) => end <= at);
    if (row < 0) continue;
    texts.push([
      mark.label,
      at,
      top + (13 * row - TOP + 1) * pixelRatio,
      cssColour(TEXT_COLOURS[mark.tone] ?? mark.tone),
    ]);
    rowEnds[row] = at + textWidth + 6 * pixelRatio;
  }
  // Labels last and with a background, so that no line crosses their text.
  for (const [text, x, y, colour] of texts) {
    context.fillStyle = cssColour("panel");
    context.fillRect(
      x - 2 * pixelRatio,
      y - pixelRatio,
      context.measureText(text).width + 4 * pixelRatio,
      13 * pixelRatio,
    );
    context.fillStyle = colour;
    context.fillText(text, x, y);
  }
  context.restore();
}
