// The fabric as cells: one per link, a row per leaf (or rack), trunks before hosts. State is a shape, colour is the metric.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { count, percent } from "../lib/format";
import { heat } from "./heatmap";

/** [id, state, has errors, waits, load, errors, times the usual wait] as fabric_api.py writes it. */
export type Cell = [string, number, 0 | 1, 0 | 1, number | null, number | null, number | null];
export interface Row {
  name: string | null;
  is_switch: boolean;
  state: string;
  why: string[];
  cells: Cell[];
  trunks: number;
}
export type Measure = "load" | "errors" | "wait";
export const MEASURES: Record<
  Measure,
  { title: string; at: 4 | 5 | 6; ticks: string[]; share: (n: number) => number; text: (n: number | null) => string }
> = {
  load: {
    title: "load",
    at: 4,
    ticks: ["0 %", "50", "100"],
    share: (n) => n,
    text: (n) => (n == null ? "load unknown" : `${percent(100 * n)} of its rate`),
  },
  errors: {
    title: "errors",
    at: 5,
    ticks: ["0", "100", "10 k"],
    share: (n) => Math.log10(1 + n) / 4,
    text: (n) => (n == null ? "errors not counted" : `${count(Math.round(n))} errors`),
  },
  wait: {
    title: "waiting",
    at: 6,
    ticks: ["0.1×", "usual", "10×"],
    share: (n) => (Math.log10(Math.max(n, 0.1)) + 1) / 2,
    text: (n) => (n == null ? "waiting not counted" : `waits ${Number(n.toPrecision(2))}× the usual`),
  },
};
export const MARKS = [
  { name: "down", glyph: "✕", text: "down" },
  { name: "event", glyph: "◆", text: "errors" },
  { name: "throttled", glyph: "▲", text: "slow" },
  { name: "waits", glyph: "‖", text: "waits" },
  { name: "silent", glyph: "–", text: "unknown" },
] as const;
type MarkName = (typeof MARKS)[number]["name"] | "";
export function markOf([, state, errs, waits]: Cell, states: string[]): MarkName {
  const name = states[state];
  if (name === "down" || name === "gone" || name === "critical" || name === "missing") return "down";
  if (errs) return "event";
  if (name === "slow" || name === "warning") return "throttled";
  return waits ? "waits" : name === "healthy" ? "" : "silent";
}

const NAME = 84;
const GROUP = 5;
const BETWEEN = 24;
const CAPTION = 15;
/** Cells are as large as the width and half a screen allow; below the least they break into lines. */
const LARGEST = 20;
const LEAST = 12;
interface Spot {
  x: number;
  y: number;
  cell: Cell;
  row: number;
}
interface Sheet {
  spots: Spot[];
  names: { x: number; y: number; row: number }[];
  captions: { x: number; text: string }[];
  height: number;
  pitch: number;
}
const owner = (cell: Cell) => cell[0].slice(0, cell[0].indexOf("/"));

/** Rows below each other, in as many columns as the width has room for; cells of one node stand together and break together. */
export function arrange(rows: Row[], width: number, room: number): Sheet {
  const groups = rows.map((row) => blocks(row));
  const swept = rows.some((row) => row.trunks);
  const long = (pitch: number) =>
    Math.max(
      ...groups.map((those) =>
        those.reduce((sum, cells, i) => sum + cells.length * pitch + (i === 0 && swept ? 3 : 1) * GROUP, NAME),
      ),
    );
  const sizes = Array.from({ length: LARGEST - LEAST + 1 }, (_, i) => LARGEST - i);
  const pitch =
    sizes.find(
      (size) =>
        long(size) <= width &&
        Math.ceil(rows.length / Math.floor((width + BETWEEN) / (long(size) + BETWEEN))) * (size + 3) <= room,
    ) ?? LEAST;
  const columns = Math.max(1, Math.floor((width + BETWEEN) / (long(pitch) + BETWEEN)));
  const top = swept ? CAPTION : 0;
  const down = Math.ceil(rows.length / columns);
  const stride = Math.floor((width + BETWEEN) / columns);
  const reach = columns > 1 ? stride - BETWEEN : width;
  const spots: Spot[] = [];
  const names: Sheet["names"] = [];
  const captions: Sheet["captions"] = [];
  const heights = Array<number>(columns).fill(top);
  rows.forEach((row, at) => {
    const column = Math.floor(at / down);
    const left = column * stride;
    let x = NAME;
    let y = heights[column];
    names.push({ x: left, y, row: at });
    groups[at].forEach((cells, i) => {
      if (swept && at % down === 0 && i < 2)
        captions.push({ x: left + x, text: i || !row.trunks ? "hosts" : "trunks" });
      if (x > NAME && x + Math.min(cells.length * pitch, reach - NAME) > reach) {
        x = NAME;
        y += pitch;
      }
      for (const cell of cells) {
        if (x + pitch - 2 > reach) {
          x = NAME;
          y += pitch;
        }
        spots.push({ x: left + x, y, cell, row: at });
        x += pitch;
      }
      x += i === 0 && row.trunks ? 3 * GROUP : GROUP;
    });
    heights[column] = y + pitch + (y > heights[column] ? 7 : 3);
  });
  return { spots, names, captions, height: Math.max(pitch, ...heights), pitch };
}
/** The trunks of a row, then its hosts: by node where a node has several ports here, else all in one. */
function blocks(row: Row): Cell[][] {
  const trunks = row.cells.slice(0, row.trunks);
  const hosts = new Map<string, Cell[]>();
  for (const cell of row.cells.slice(row.trunks)) hosts.set(owner(cell), [...(hosts.get(owner(cell)) ?? []), cell]);
  const single = [...hosts.values()].every((cells) => cells.length === 1);
  return [...(trunks.length ? [trunks] : []), ...(single ? [row.cells.slice(row.trunks)] : hosts.values())];
}

function draw(
  pen: CanvasRenderingContext2D,
  mark: MarkName,
  x: number,
  y: number,
  size: number,
  ink: Record<string, string>,
): void {
  const c = size / 2;
  const r = size * 0.28;
  const mx = x + c;
  const my = y + c;
  pen.beginPath();
  pen.lineWidth = 1.4;
  if (mark === "down") {
    pen.fillStyle = ink.bad;
    pen.fillRect(x, y, size, size);
    pen.strokeStyle = "#fff";
    pen.moveTo(mx - r, my - r);
    pen.lineTo(mx + r, my + r);
    pen.moveTo(mx + r, my - r);
    pen.lineTo(mx - r, my + r);
  } else if (mark === "event" || mark === "throttled") {
    const d = size * 0.42;
    pen.moveTo(mx, my - d);
    if (mark === "event") {
      pen.lineTo(mx + d, my);
      pen.lineTo(mx, my + d);
      pen.lineTo(mx - d, my);
    } else {
      pen.lineTo(mx + d, my + d * 0.85);
      pen.lineTo(mx - d, my + d * 0.85);
    }
    pen.closePath();
    pen.fillStyle = mark === "event" ? ink.bad : ink.warn;
    pen.fill();
    pen.strokeStyle = ink.panel;
    pen.lineWidth = 0.8;
  } else if (mark === "waits") {
    pen.strokeStyle = ink.panel;
    pen.lineWidth = 4;
    pen.moveTo(mx - 2, my - r - 1);
    pen.lineTo(mx - 2, my + r + 1);
    pen.moveTo(mx + 2, my - r - 1);
    pen.lineTo(mx + 2, my + r + 1);
    pen.stroke();
    pen.beginPath();
    pen.strokeStyle = ink.warn;
    pen.lineWidth = 1.8;
    pen.moveTo(mx - 2, my - r);
    pen.lineTo(mx - 2, my + r);
    pen.moveTo(mx + 2, my - r);
    pen.lineTo(mx + 2, my + r);
  } else {
    pen.strokeStyle = ink.line;
    pen.lineWidth = 1;
    pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    pen.strokeStyle = ink.unknown;
    pen.lineWidth = 1.3;
    pen.moveTo(mx - r, my);
    pen.lineTo(mx + r, my);
  }
  pen.stroke();
}

interface Props {
  rows: Row[];
  states: string[];
  measure: Measure;
  theme: string;
  chosen: string;
  choose: (id: string) => void;
  chooseRow: (name: string) => void;
  row: string;
  /** Dimmed unless it is among these; undefined dims nothing. */
  among?: Set<string>;
}
export function PortMap(p: Props) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, measureWidth] = useState(0);
  const [at, move] = useState<number | null>(null);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => measureWidth(Math.floor(entry.contentRect.width)));
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);
  const sheet = useMemo(
    () => (width ? arrange(p.rows, width, Math.max(220, innerHeight * 0.42)) : null),
    [p.rows, width],
  );
  const { at: column, share, text } = MEASURES[p.measure];

  useEffect(() => {
    const paper = canvas.current;
    const pen = paper?.getContext("2d");
    if (!sheet || !paper || !pen) return;
    const sharp = devicePixelRatio || 1;
    const css = getComputedStyle(document.documentElement);
    const ink = Object.fromEntries(
      ["bad", "bad-text", "warn", "panel", "line", "unknown", "dim", "ink", "accent"].map((n) => [
        n,
        css.getPropertyValue(`--${n}`).trim(),
      ]),
    );
    paper.width = width * sharp;
    paper.height = sheet.height * sharp;
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    pen.clearRect(0, 0, width, sheet.height);
    pen.font = "11px system-ui, sans-serif";
    const size = sheet.pitch - 2;
    pen.fillStyle = ink.dim;
    for (const { x, text } of sheet.captions) pen.fillText(text, x, 9);
    for (const { x, y, row } of sheet.names) {
      const one = p.rows[row];
      const name = one.name ?? "no rack";
      const bad = one.state !== "healthy";
      pen.fillStyle = p.row === (one.name ?? "") && p.row ? ink.accent : bad ? ink.ink : ink.dim;
      pen.fillText(name.length > 13 ? `${name.slice(0, 12)}…` : name, x, y + size / 2 + 4);
    }
    for (const { x, y, cell } of sheet.spots) {
      const value = cell[column];
      const mark = markOf(cell, p.states);
      pen.globalAlpha = p.among && !p.among.has(cell[0]) ? 0.16 : 1;
      if (value != null && mark !== "silent") {
        pen.fillStyle = heat(share(value));
        pen.fillRect(x, y, size, size);
      }
      if (mark || value == null) draw(pen, mark || "silent", x, y, size, ink);
    }
    pen.globalAlpha = 1;
    const outline = (spot: Spot | undefined, colour: string) => {
      if (spot) {
        pen.strokeStyle = colour;
        pen.lineWidth = 2;
        pen.strokeRect(spot.x - 1.5, spot.y - 1.5, size + 3, size + 3);
      }
    };
    outline(
      sheet.spots.find((s) => s.cell[0] === p.chosen),
      ink.ink,
    );
    outline(at == null ? undefined : sheet.spots[at], ink.accent);
    paper.dataset.drawn = String(sheet.spots.length);
  }, [sheet, p.rows, p.measure, p.theme, p.chosen, p.among, p.row, at]);

  const hit = (event: MouseEvent): number | null => {
    const found =
      sheet?.spots.findIndex(
        (s) =>
          event.offsetX >= s.x &&
          event.offsetX < s.x + sheet.pitch &&
          event.offsetY >= s.y &&
          event.offsetY < s.y + sheet.pitch,
      ) ?? -1;
    return found < 0 ? null : found;
  };
  const nameAt = (event: MouseEvent) =>
    sheet?.names.find(
      (n) =>
        event.offsetX >= n.x &&
        event.offsetX < n.x + NAME - 4 &&
        event.offsetY >= n.y &&
        event.offsetY < n.y + sheet.pitch,
    );
  const click = (event: MouseEvent) => {
    const found = hit(event);
    const name = nameAt(event);
    if (found != null) p.choose(sheet!.spots[found].cell[0]);
    else if (name) p.chooseRow(p.rows[name.row].name ?? "");
  };
  const keys = (event: KeyboardEvent) => {
    if (!sheet?.spots.length) return;
    const here = at == null ? undefined : sheet.spots[at];
    const last = sheet.spots.length - 1;
    const near = (row: number) =>
      sheet.spots.reduce(
        (best, s, i) =>
          s.row === row && (best < 0 || Math.abs(s.x - here!.x) < Math.abs(sheet.spots[best].x - here!.x)) ? i : best,
        -1,
      );
    const steps: Record<string, () => number> = {
      ArrowRight: () => Math.min(last, (at ?? -1) + 1),
      ArrowLeft: () => Math.max(0, (at ?? 1) - 1),
      ArrowDown: () => (here ? near(here.row + 1) : 0),
      ArrowUp: () => (here ? near(here.row - 1) : 0),
    };
    const next = steps[event.key]?.();
    if (next !== undefined) {
      event.preventDefault();
      if (next >= 0) move(next);
    }
    if (event.key === "Enter" && here) p.choose(here.cell[0]);
    if (event.key === "Escape") move(null);
  };
  const spot = at == null ? undefined : sheet?.spots[at];
  const mark = spot && MARKS.find((m) => m.name === markOf(spot.cell, p.states));
  return (
    <div class="heatmap" ref={box}>
      <canvas
        ref={canvas}
        data-testid="portmap"
        tabIndex={0}
        role="img"
        style={{ width: `${width}px`, height: `${sheet?.height ?? 160}px` }}
        aria-label={`Map of ${sheet?.spots.length ?? 0} links in ${p.rows.length} rows, coloured by ${MEASURES[p.measure].title}. Arrow keys move, Enter opens a link.`}
        onMouseMove={(e) => move(hit(e))}
        onMouseLeave={() => move(null)}
        onClick={click}
        onKeyDown={keys}
      />
      {spot && (
        <div
          class="tip"
          role="status"
          data-testid="port-tip"
          style={{
            left: `${Math.max(0, Math.min(spot.x + sheet!.pitch + 8, width - 230))}px`,
            top: `${spot.y + sheet!.pitch + 6}px`,
          }}
        >
          <b>{spot.cell[0].replaceAll("/", " · ")}</b>
          <span>{mark ? `${mark.glyph} ${mark.text}` : "up"}</span>
          <span>{text(spot.cell[column])}</span>
          {p.measure !== "errors" && spot.cell[5] != null && spot.cell[5] >= 1 && (
            <span>{MEASURES.errors.text(spot.cell[5])}</span>
          )}
        </div>
      )}
    </div>
  );
}
