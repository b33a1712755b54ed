// The fleet as cells: one per GPU, a row per node, a block per rack or other failure domain. State is a shape, colour is the metric.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Fits } from "./find";
import { many, quantity } from "./format";
import { STATES } from "./parts";
import { go, to } from "./router";
import type { Frame } from "./live";
import type { Fleet, FleetNode, Gpu } from "./types";

// One hue, dark to light, in both themes: status colours stay free for status.
const LOW = [0x1f, 0x3b, 0x57], HIGH = [0xa9, 0xd6, 0xf5];
export const heat = (share: number) =>
  `rgb(${LOW.map((low, i) => Math.round(low + (HIGH[i] - low) * Math.min(1, Math.max(0, share)))).join(" ")})`;
const STEPS = 64, SCALE = Array.from({ length: STEPS + 1 }, (_, i) => heat(i / STEPS));
const LABEL = 16, GAP = 8, BETWEEN = 14, NAME = 104, LARGEST = 22, SMALLEST = 5;
const TIP = 250;

export interface Cell { x: number; y: number; node: FleetNode; gpu: Gpu | null; slot: number }
interface Label { x: number; y: number; text: string; to: "block" | "node"; wide: number }
interface Layout { cells: Cell[]; labels: Label[]; pitch: number; height: number; blocks: number; trouble: Map<string, number[]> }
/** How a cell is painted and called: by a metric, or by the group it belongs to. */
export interface Paint { title: string; unit: string; colour: (cell: Cell, value: number) => string | null; tell: (cell: Cell, value: number) => string }

export const scaled = (title: string, unit: string, low: number, high: number): Paint => ({
  title, unit,
  colour: (_cell, value) => (Number.isNaN(value) ? null : SCALE[Math.min(STEPS, Math.max(0, Math.round((STEPS * (value - low)) / (high - low))))]),
  tell: (_cell, value) => `${title}: ${quantity(value, unit)}`,
});

/** The largest cells with which the fleet fits the height and fills the width; at 5 px it scrolls instead. */
export function arrange(fleet: Fleet, width: number, room: number, by: string, only?: (node: FleetNode) => boolean): Layout {
  const blocks = new Map<string, { node: FleetNode; first: number }[]>();
  let slot = 0;
  for (const node of fleet.nodes) {
    const name = (by === "pool" ? node.pool : node.domains[by]) ?? (by === "rack" ? node.rack : null) ?? `no ${by}`;
    if (!only || only(node)) blocks.set(name, [...(blocks.get(name) ?? []), { node, first: slot }]);
    slot += node.gpus.length;
  }
  const shown = [...blocks.values()], named = shown.reduce((sum, rows) => sum + rows.length, 0) <= 48, before = named ? NAME : 0;
  const across = Math.max(1, ...shown.flatMap((rows) => rows.map(({ node }) => node.gpus.length))), down = Math.max(1, ...shown.map((rows) => rows.length));
  const evenly = (pitch: number) => {
    const most = Math.max(1, Math.floor((width + GAP) / (before + across * pitch + GAP)));
    return Math.ceil(blocks.size / Math.ceil(blocks.size / most)) || 1;
  };
  const fitting = Array.from({ length: LARGEST - 4 }, (_, i) => LARGEST - i).filter((pitch) =>
    Math.ceil(blocks.size / evenly(pitch)) * (down * pitch + LABEL + BETWEEN) <= room && before + across * pitch <= width);
  // Rows that fill the width look better than slightly larger cells with wide gaps between the blocks.
  const full = fitting.find((pitch) => evenly(pitch) >= blocks.size || evenly(pitch) * (before + across * pitch + GAP) >= 0.85 * width);
  const pitch = full ?? fitting[0] ?? SMALLEST, perRow = evenly(pitch), own = before + across * pitch;
  const stride = Math.max(own + GAP, perRow >= blocks.size ? 0 : Math.floor((width + GAP) / perRow));
  const layout: Layout = { cells: [], labels: [], pitch, height: 0, blocks: blocks.size, trouble: new Map() };
  let at = 0, top = 0, tallest = 0;
  for (const [name, rows] of blocks) {
    if (at % perRow === 0) { top += at ? tallest + LABEL + BETWEEN : 0; tallest = 0; }
    const left = Math.round((at % perRow) * stride);
    layout.labels.push({ x: left, y: top + 11, text: name, to: "block", wide: own });
    layout.trouble.set(name, rows.flatMap(({ node, first }) => node.gpus.map((_, i) => first + i)));
    rows.forEach(({ node, first }, row) => {
      const y = top + LABEL + row * pitch;
      if (named) layout.labels.push({ x: left, y: y + pitch / 2 + 3, text: node.name, to: "node", wide: NAME - 6 });
      node.gpus.forEach((gpu, column) => layout.cells.push({ x: left + before + column * pitch, y, node, gpu, slot: first + column }));
    });
    tallest = Math.max(tallest, rows.length * pitch);
    at++;
  }
  layout.height = top + tallest + LABEL;
  return layout;
}

type Inks = Record<string, string>;
function glyph(pen: CanvasRenderingContext2D, state: number, x: number, y: number, size: number, ink: Inks): void {
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
    // A rack that says nothing must not look like a gap in the map.
    pen.strokeStyle = state === 4 ? ink.unknown : ink.line; pen.lineWidth = 1; pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    pen.strokeStyle = ink.unknown; pen.lineWidth = Math.max(1, size / 8);
    pen.moveTo(mx - (state === 4 ? r : 0.5), my); pen.lineTo(mx + (state === 4 ? r : 0.5), my); pen.stroke();
  } else if (state === 5) {
    // Light on dark cells, dark on light ones: a ring is seen on both ends of the scale.
    pen.strokeStyle = ink.ring; pen.lineWidth = Math.max(0.8, size / 11);
    pen.arc(mx, my, r * 0.85, 0, 7); pen.stroke();
  }
}

interface Props { fleet: Fleet; frame?: Frame; paint: Paint; fits?: Fits; only?: (node: FleetNode) => boolean; by: string; theme: string; chooseBlock: (name: string) => void }
export function HeatMap(p: Props) {
  const box = useRef<HTMLDivElement>(null), canvas = useRef<HTMLCanvasElement>(null);
  const [width, measure] = useState(0), [chosen, choose] = useState<number | null>(null);
  // Measured before the first paint: a map that gets its height a moment later pushes away what stands below it.
  useLayoutEffect(() => {
    measure(Math.floor(box.current!.clientWidth));
    const watch = new ResizeObserver(([entry]) => measure(Math.floor(entry.contentRect.width)));
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);
  const layout = useMemo(() => (width ? arrange(p.fleet, width, Math.max(240, innerHeight * 0.46), p.by, p.only) : null), [p.fleet, width, p.by, p.only]);
  const frame = p.frame && p.frame.version === p.fleet.version ? p.frame : undefined;
  useEffect(() => { if (layout && canvas.current) draw(canvas.current, width, layout, frame, p); }, [layout, frame, p.paint, p.fits, p.theme]);

  const hit = (event: MouseEvent) => {
    const found = layout?.cells.findIndex((c) => event.offsetX >= c.x && event.offsetX < c.x + layout.pitch && event.offsetY >= c.y && event.offsetY < c.y + layout.pitch) ?? -1;
    return found < 0 ? null : found;
  };
  const label = (event: MouseEvent) => layout?.labels.find((l) => event.offsetX >= l.x && event.offsetX <= l.x + l.wide && event.offsetY >= l.y - 11 && event.offsetY <= l.y + 5);
  const cell = chosen == null ? undefined : layout?.cells[chosen];
  const open = (c?: Cell) => { if (c) go(c.gpu ? to.gpu(c.gpu.uuid) : to.node(c.node.name)); };
  const click = (event: MouseEvent) => {
    const at = hit(event), name = label(event);
    if (at != null) open(layout?.cells[at]);
    else if (name) name.to === "block" ? p.chooseBlock(name.text) : go(to.node(name.text));
  };
  const point = (event: MouseEvent) => {
    const at = hit(event);
    choose(at);
    canvas.current!.style.cursor = at != null || label(event) ? "pointer" : "default";
  };
  const keys = (event: KeyboardEvent) => {
    if (!layout) return;
    const across = cell ? cell.node.gpus.length : 8;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across }[event.key];
    if (step) { event.preventDefault(); choose(Math.min(layout.cells.length - 1, Math.max(0, (chosen ?? -step) + step))); }
    if (event.key === "Enter" && cell) { event.stopPropagation(); open(cell); }
    if (event.key === "Escape") choose(null);
  };
  const value = cell && frame ? frame.values[cell.slot] : NaN, size = layout ? layout.pitch - (layout.pitch > 12 ? 2 : 1) : 0;
  return (
    <div class="heatmap" ref={box}>
      <canvas ref={canvas} data-testid="heatmap" data-pitch={layout?.pitch} tabIndex={0} role="img" style={{ width: `${width}px`, height: `${layout?.height ?? 300}px` }}
        aria-label={`Map of ${many(layout?.cells.length ?? 0, "GPU")} in ${many(layout?.blocks ?? 0, "block")} by ${p.by}, coloured by ${p.paint.title}.${told(layout, frame)} Arrow keys move, Enter opens a GPU.`}
        onMouseMove={point} onMouseLeave={() => choose(null)} onClick={click} onKeyDown={keys} />
      {cell && layout && <>
        <div class="ring" style={{ left: `${cell.x - 2}px`, top: `${cell.y - 2}px`, width: `${size + 4}px`, height: `${size + 4}px` }} />
        <div class="tip" role="status" data-testid="tip" style={{ left: `${Math.max(0, Math.min(cell.x + layout.pitch + 8, width - TIP))}px`, top: `${cell.y + layout.pitch + 6}px` }}>
          <b>{cell.node.name} · {cell.gpu ? `GPU ${cell.gpu.index ?? "?"}` : "expected, never reported"}</b>
          {describe(cell, frame, p, value).map((line) => <span key={line}>{line}</span>)}
        </div>
      </>}
    </div>
  );
}

/** How many GPUs of a block are down, have an event, throttle or do not report. */
function wrongIn(layout: Layout, frame: Frame, block: string): [state: number, gpus: number][] {
  const found = [0, 0, 0, 0, 0];
  for (const slot of layout.trouble.get(block) ?? []) if (frame.states[slot] < found.length) found[frame.states[slot]]++;
  return found.map((n, state): [number, number] => [state, n]).slice(1).filter(([, n]) => n > 0);
}
const MOST_TOLD = 8;
/** What the map shows, for those who do not see it: the blocks with trouble, the first of them by name. */
function told(layout: Layout | null, frame: Frame | undefined): string {
  const wrong = layout && frame ? [...layout.trouble.keys()].map((name) => [name, wrongIn(layout, frame, name)] as const).filter(([, found]) => found.length) : [];
  const some = wrong.slice(0, MOST_TOLD).map(([name, found]) => `${name} ${found.map(([state, n]) => `${n} ${STATES[state].text}`).join(", ")}`);
  return wrong.length ? ` Trouble: ${some.join("; ")}${wrong.length > MOST_TOLD ? `; and ${wrong.length - MOST_TOLD} more` : ""}.` : "";
}

function draw(sheet: HTMLCanvasElement, width: number, layout: Layout, frame: Frame | undefined, p: Props): void {
  const pen = sheet.getContext("2d");
  if (!pen) return;
  const sharp = devicePixelRatio || 1, css = getComputedStyle(document.documentElement);
  const ink: Inks = Object.fromEntries(["bad", "bad-text", "warn", "warn-text", "panel", "line", "unknown", "dim"].map((n) => [n, css.getPropertyValue(`--${n}`)]));
  ink.ring = "#dbe7f3";
  if (sheet.width !== width * sharp || sheet.height !== layout.height * sharp) { sheet.width = width * sharp; sheet.height = layout.height * sharp; }
  pen.setTransform(sharp, 0, 0, sharp, 0, 0);
  pen.clearRect(0, 0, width, layout.height);
  pen.font = "10.5px system-ui, sans-serif";
  for (const label of layout.labels) {
    pen.fillStyle = ink.dim;
    pen.fillText(label.text, label.x, label.y, label.wide);
    if (label.to !== "block" || !frame) continue;
    // What is wrong inside a block stands beside its name: a failure domain is seen before its cells are counted.
    let x = label.x + Math.min(label.wide, pen.measureText(label.text).width) + 6;
    for (const [state, n] of wrongIn(layout, frame, label.text)) {
      const text = `${STATES[state].glyph}${n}`;
      if (x + pen.measureText(text).width > label.x + label.wide) continue;
      pen.fillStyle = ink[state < 3 ? "bad-text" : "warn-text"];
      pen.fillText(text, x, label.y);
      x += pen.measureText(text).width + 5;
    }
  }
  const size = layout.pitch - (layout.pitch > 12 ? 2 : 1);
  for (const cell of layout.cells) {
    const { x, y, slot } = cell, value = frame ? frame.values[slot] : NaN, state = frame ? frame.states[slot] : 6;
    pen.globalAlpha = p.fits && !p.fits(cell.node, cell.gpu, state) ? 0.16 : 1;
    const colour = state === 4 || state === 6 ? null : p.paint.colour(cell, value);
    if (colour) { pen.fillStyle = colour; pen.fillRect(x, y, size, size); }
    if (state || !colour) glyph(pen, state || 4, x, y, size, ink);
  }
  pen.globalAlpha = 1;
  sheet.dataset.drawn = frame ? frame.at : "";
}

function describe(cell: Cell, frame: Frame | undefined, { paint, fleet }: Props, value: number): string[] {
  const state = STATES[frame ? frame.states[cell.slot] : 6], holder = cell.gpu?.workload, team = holder && fleet.teams?.[holder];
  const domains = Object.entries(cell.node.domains).map(([name, where]) => `${name} ${where}`).join(" · ");
  return [
    `${state.glyph} ${state.text}`.trim(), paint.tell(cell, value),
    fleet.workloads ? (holder ? `held by ${holder}${team && !holder.startsWith(`${team}/`) ? `, team ${team}` : ""}` : "not held by a workload") : "holder unknown",
    [cell.gpu?.model, domains].filter(Boolean).join(" · "),
  ].filter(Boolean);
}
