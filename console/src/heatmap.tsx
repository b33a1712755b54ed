// The fleet as cells: one per GPU, a row per node, a block per rack. State is a shape, colour is the metric.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { quantity } from "./format";
import { go } from "./router";
import type { Colour, Fleet, FleetNode, Frame, Gpu } from "./types";

export const STATES = [
  { name: "ok", glyph: "", text: "healthy" },
  { name: "down", glyph: "✕", text: "down" },
  { name: "event", glyph: "◆", text: "event open" },
  { name: "throttled", glyph: "▲", text: "throttled" },
  { name: "silent", glyph: "–", text: "not reporting" },
  { name: "held_idle", glyph: "○", text: "held, idle" },
  { name: "unknown", glyph: "·", text: "unknown" },
] as const;
// One hue, dark to light, in both themes: status colours stay free for status.
const LOW = [0x1f, 0x3b, 0x57], HIGH = [0xa9, 0xd6, 0xf5];
export const heat = (share: number) =>
  `rgb(${LOW.map((low, i) => Math.round(low + (HIGH[i] - low) * Math.min(1, Math.max(0, share)))).join(" ")})`;
const SCALE = Array.from({ length: 65 }, (_, i) => heat(i / 64));
const LABEL = 16, GAP = 8, BETWEEN = 14;

interface Cell { x: number; y: number; node: FleetNode; gpu: Gpu | null; slot: number }
interface Layout { cells: Cell[]; labels: { x: number; y: number; text: string }[]; pitch: number; height: number; racks: number }

/** The largest cells with which the fleet fits the height and fills the width; at 5 px it scrolls instead. */
export function arrange(fleet: Fleet, width: number, room: number): Layout {
  const racks = new Map<string, FleetNode[]>();
  for (const node of fleet.nodes) {
    const name = node.rack ?? "no rack";
    racks.set(name, [...(racks.get(name) ?? []), node]);
  }
  const across = Math.max(1, ...fleet.nodes.map((n) => n.gpus.length));
  const down = Math.max(1, ...[...racks.values()].map((nodes) => nodes.length));
  const evenly = (pitch: number) => {
    const most = Math.max(1, Math.floor((width + GAP) / (across * pitch + GAP)));
    return Math.ceil(racks.size / Math.ceil(racks.size / most)) || 1;
  };
  const fitting = Array.from({ length: 18 }, (_, i) => 22 - i).filter((pitch) =>
    Math.ceil(racks.size / evenly(pitch)) * (down * pitch + LABEL + BETWEEN) <= room && across * pitch <= width);
  // Rows that fill the width look better than slightly larger cells with wide gaps between the racks.
  const full = fitting.find((pitch) => evenly(pitch) >= racks.size || evenly(pitch) * (across * pitch + GAP) >= 0.85 * width);
  const pitch = full ?? fitting[0] ?? 5, perRow = evenly(pitch);
  const stride = Math.max(across * pitch + GAP, perRow >= racks.size ? 0 : Math.floor((width + GAP) / perRow));
  const cells: Cell[] = [], labels: Layout["labels"] = [];
  let slot = 0, at = 0;
  for (const [name, nodes] of racks) {
    const left = Math.round((at % perRow) * stride), top = Math.floor(at / perRow) * (down * pitch + LABEL + BETWEEN);
    labels.push({ x: left, y: top + 11, text: name });
    nodes.forEach((node, row) => node.gpus.forEach((gpu, column) =>
      cells.push({ x: left + column * pitch, y: top + LABEL + row * pitch, node, gpu, slot: slot++ })));
    at++;
  }
  return { cells, labels, pitch, height: Math.ceil(racks.size / perRow) * (down * pitch + LABEL + BETWEEN) - BETWEEN, racks: racks.size };
}

function glyph(pen: CanvasRenderingContext2D, state: number, x: number, y: number, size: number, ink: Record<string, string>): void {
  const c = size / 2, r = size * 0.3, mx = x + c, my = y + c;
  pen.beginPath();
  pen.lineWidth = Math.max(1, size / 9);
  if (state === 1) {
    pen.fillStyle = ink.bad; pen.fillRect(x, y, size, size);
    pen.strokeStyle = "#fff";
    pen.moveTo(mx - r, my - r); pen.lineTo(mx + r, my + r); pen.moveTo(mx + r, my - r); pen.lineTo(mx - r, my + r);
    pen.stroke();
  } else if (state === 2 || state === 3) {
    const d = size * 0.42;
    pen.moveTo(mx, my - d);
    if (state === 2) { pen.lineTo(mx + d, my); pen.lineTo(mx, my + d); pen.lineTo(mx - d, my); }
    else { pen.lineTo(mx + d, my + d * 0.85); pen.lineTo(mx - d, my + d * 0.85); }
    pen.closePath();
    pen.fillStyle = state === 2 ? ink.bad : ink.warn; pen.fill();
    pen.strokeStyle = ink.panel; pen.lineWidth = Math.max(0.7, size / 14); pen.stroke();
  } else if (state === 4 || state === 6) {
    pen.strokeStyle = ink.line; pen.lineWidth = 1; pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    pen.strokeStyle = ink.unknown; pen.lineWidth = Math.max(1, size / 8);
    pen.moveTo(mx - (state === 4 ? r : 0.5), my); pen.lineTo(mx + (state === 4 ? r : 0.5), my); pen.stroke();
  } else if (state === 5) {
    pen.strokeStyle = "#c9d6e4"; pen.lineWidth = Math.max(0.8, size / 11);
    pen.arc(mx, my, r * 0.85, 0, 7); pen.stroke();
  }
}

export function HeatMap(p: { fleet: Fleet; frame?: Frame; colour: Colour; matches?: (node: FleetNode, gpu: Gpu | null) => boolean; theme: string }) {
  const box = useRef<HTMLDivElement>(null), canvas = useRef<HTMLCanvasElement>(null);
  const [width, measure] = useState(0);
  const [chosen, choose] = useState<number | null>(null);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => measure(Math.floor(entry.contentRect.width)));
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);
  const layout = useMemo(() => (width ? arrange(p.fleet, width, Math.max(240, innerHeight * 0.46)) : null), [p.fleet, width]);
  const frame = p.frame && p.frame.version === p.fleet.version ? p.frame : undefined;

  useEffect(() => {
    const sheet = canvas.current, pen = sheet?.getContext("2d");
    if (!layout || !sheet || !pen) return;
    const sharp = devicePixelRatio || 1, css = getComputedStyle(document.documentElement);
    const ink = Object.fromEntries(["bad", "warn", "panel", "line", "unknown", "dim", "ink", "accent"].map((n) => [n, css.getPropertyValue(`--${n}`)]));
    if (sheet.width !== width * sharp || sheet.height !== layout.height * sharp) { sheet.width = width * sharp; sheet.height = layout.height * sharp; }
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    pen.clearRect(0, 0, width, layout.height);
    pen.font = "10.5px system-ui, sans-serif";
    pen.fillStyle = ink.dim;
    for (const label of layout.labels) pen.fillText(label.text, label.x, label.y);
    const size = layout.pitch - (layout.pitch > 12 ? 2 : 1), reach = p.colour.high - p.colour.low;
    for (const { x, y, slot, node, gpu } of layout.cells) {
      const value = frame ? frame.values[slot] : NaN, state = frame ? frame.states[slot] : 6;
      pen.globalAlpha = p.matches && !p.matches(node, gpu) ? 0.16 : 1;
      if (!Number.isNaN(value) && state !== 4 && state !== 6) {
        pen.fillStyle = SCALE[Math.min(64, Math.max(0, Math.round((64 * (value - p.colour.low)) / reach)))];
        pen.fillRect(x, y, size, size);
      }
      if (state || Number.isNaN(value)) glyph(pen, state || 4, x, y, size, ink);
    }
    pen.globalAlpha = 1;
    if (chosen != null && layout.cells[chosen]) {
      const { x, y } = layout.cells[chosen];
      pen.strokeStyle = ink.accent; pen.lineWidth = 2; pen.strokeRect(x - 1.5, y - 1.5, size + 3, size + 3);
    }
    sheet.dataset.drawn = frame ? frame.at : "";
  }, [layout, frame, p.colour, p.matches, p.theme, chosen]);

  const hit = (event: MouseEvent) => {
    if (!layout) return null;
    const found = layout.cells.findIndex((c) => event.offsetX >= c.x && event.offsetX < c.x + layout.pitch && event.offsetY >= c.y && event.offsetY < c.y + layout.pitch);
    return found < 0 ? null : found;
  };
  const cell = chosen == null ? undefined : layout?.cells[chosen];
  const open = (c?: Cell) => c?.gpu && go(`/gpu/${c.gpu.uuid}`);
  const keys = (event: KeyboardEvent) => {
    if (!layout) return;
    const across = cell ? cell.node.gpus.length : 8;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across }[event.key];
    if (step) { event.preventDefault(); choose(Math.min(layout.cells.length - 1, Math.max(0, (chosen ?? -step) + step))); }
    if (event.key === "Enter") open(cell);
    if (event.key === "Escape") choose(null);
  };
  const told = cell && describe(cell, frame, p.colour, p.fleet.workloads);
  return (
    <div class="heatmap" ref={box}>
      <canvas ref={canvas} data-testid="heatmap" tabIndex={0} role="img" style={{ width: `${width}px`, height: `${layout?.height ?? 200}px` }}
        aria-label={`Map of ${layout?.cells.length ?? 0} GPUs in ${layout?.racks ?? 0} racks, coloured by ${p.colour.title}. Arrow keys move, Enter opens a GPU.`}
        onMouseMove={(e) => choose(hit(e))} onMouseLeave={() => choose(null)} onClick={(e) => { const at = hit(e); if (at != null) open(layout?.cells[at]); }} onKeyDown={keys} />
      {cell && told && (
        <div class="tip" role="status" data-testid="tip" style={{ left: `${Math.max(0, Math.min(cell.x + layout!.pitch + 8, width - 230))}px`, top: `${cell.y + layout!.pitch + 6}px` }}>
          <b>{told.title}</b>{told.lines.map((line) => <span key={line}>{line}</span>)}
        </div>
      )}
    </div>
  );
}

function describe(cell: Cell, frame: Frame | undefined, colour: Colour, workloads: Fleet["workloads"]) {
  const state = STATES[frame ? frame.states[cell.slot] : 6];
  const holder = cell.gpu && workloads?.[cell.gpu.uuid];
  return {
    title: `${cell.node.name} · ${cell.gpu ? `GPU ${cell.gpu.index ?? "?"}` : "expected, never reported"}`,
    lines: [
      `${state.glyph} ${state.text}`.trim(),
      `${colour.title}: ${quantity(frame?.values[cell.slot], colour.unit)}`,
      workloads ? (holder ? `held by ${holder}` : "not held by a workload") : "holder unknown",
      cell.gpu?.model ?? "",
    ].filter(Boolean),
  };
}
