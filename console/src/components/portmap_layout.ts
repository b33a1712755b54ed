// Layout of the fabric map: the position, metric and mark of each link.

import { count, percent } from "../lib/format";

/** [id, state, has errors, is congested, load, errors, wait / median wait], as fabric_api.py writes it. */
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
    text: (n) => (n == null ? "load unknown" : `${percent(100 * n)} of link rate`),
  },
  errors: {
    title: "errors",
    at: 5,
    ticks: ["0", "100", "10 k"],
    share: (n) => Math.log10(1 + n) / 4,
    text: (n) => (n == null ? "no error counter" : `${count(Math.round(n))} errors`),
  },
  wait: {
    title: "congestion",
    at: 6,
    ticks: ["0.1×", "median", "10×"],
    share: (n) => (Math.log10(Math.max(n, 0.1)) + 1) / 2,
    text: (n) => (n == null ? "no congestion counter" : `send wait ${Number(n.toPrecision(2))}× the median`),
  },
};

export const MARKS = [
  { name: "down", glyph: "✕", text: "down" },
  { name: "event", glyph: "◆", text: "errors" },
  { name: "throttled", glyph: "▲", text: "slow" },
  { name: "waits", glyph: "‖", text: "congested" },
  { name: "silent", glyph: "–", text: "unknown" },
] as const;

export type MarkName = (typeof MARKS)[number]["name"] | "";

export function markOf([, state, errs, waits]: Cell, states: string[]): MarkName {
  const name = states[state];
  if (name === "down" || name === "gone" || name === "critical" || name === "missing") return "down";
  if (errs) return "event";
  if (name === "slow" || name === "warning") return "throttled";
  return waits ? "waits" : name === "healthy" ? "" : "silent";
}

export const NAME_WIDTH = 84;

const GROUP = 5;

const BETWEEN = 24;

const CAPTION = 15;

/** Cells are as large as the width and half a screen allow; at the smallest size, rows wrap. */
const LARGEST = 20;

const SMALLEST = 12;

export interface PlacedLink {
  x: number;
  y: number;
  cell: Cell;
  row: number;
}

interface PortLayout {
  links: PlacedLink[];
  names: { x: number; y: number; row: number }[];
  captions: { x: number; text: string }[];
  height: number;
  pitch: number;
}

const nodeOf = (cell: Cell) => cell[0].slice(0, cell[0].indexOf("/"));

/** Lay out the rows in as many columns as fit the width; the cells of a node stay together when a row wraps. */
export function layOutPorts(rows: Row[], width: number, maxHeight: number): PortLayout {
  const groups = rows.map((row) => groupCells(row));
  const hasTrunks = rows.some((row) => row.trunks);
  const rowWidth = (pitch: number) =>
    Math.max(
      ...groups.map((rowGroups) =>
        rowGroups.reduce(
          (sum, cells, i) => sum + cells.length * pitch + (i === 0 && hasTrunks ? 3 : 1) * GROUP,
          NAME_WIDTH,
        ),
      ),
    );
  const sizes = Array.from({ length: LARGEST - SMALLEST + 1 }, (_, i) => LARGEST - i);
  const pitch =
    sizes.find(
      (size) =>
        rowWidth(size) <= width &&
        Math.ceil(rows.length / Math.floor((width + BETWEEN) / (rowWidth(size) + BETWEEN))) * (size + 3) <= maxHeight,
    ) ?? SMALLEST;
  const columns = Math.max(1, Math.floor((width + BETWEEN) / (rowWidth(pitch) + BETWEEN)));
  const top = hasTrunks ? CAPTION : 0;
  const rowsPerColumn = Math.ceil(rows.length / columns);
  const stride = Math.floor((width + BETWEEN) / columns);
  const columnWidth = columns > 1 ? stride - BETWEEN : width;
  const links: PlacedLink[] = [];
  const names: PortLayout["names"] = [];
  const captions: PortLayout["captions"] = [];
  const heights = Array<number>(columns).fill(top);
  rows.forEach((row, at) => {
    const column = Math.floor(at / rowsPerColumn);
    const left = column * stride;
    let x = NAME_WIDTH;
    let y = heights[column];
    names.push({ x: left, y, row: at });
    groups[at].forEach((cells, i) => {
      if (hasTrunks && at % rowsPerColumn === 0 && i < 2)
        captions.push({ x: left + x, text: i || !row.trunks ? "nodes" : "trunks" });
      if (x > NAME_WIDTH && x + Math.min(cells.length * pitch, columnWidth - NAME_WIDTH) > columnWidth) {
        x = NAME_WIDTH;
        y += pitch;
      }
      for (const cell of cells) {
        if (x + pitch - 2 > columnWidth) {
          x = NAME_WIDTH;
          y += pitch;
        }
        links.push({ x: left + x, y, cell, row: at });
        x += pitch;
      }
      x += i === 0 && row.trunks ? 3 * GROUP : GROUP;
    });
    heights[column] = y + pitch + (y > heights[column] ? 7 : 3);
  });
  return { links, names, captions, height: Math.max(pitch, ...heights), pitch };
}

/** Group the cells of a row: trunks first, then a group per node if a node has several ports, else one group. */
function groupCells(row: Row): Cell[][] {
  const trunks = row.cells.slice(0, row.trunks);
  const hosts = new Map<string, Cell[]>();
  for (const cell of row.cells.slice(row.trunks)) hosts.set(nodeOf(cell), [...(hosts.get(nodeOf(cell)) ?? []), cell]);
  const hasSinglePorts = [...hosts.values()].every((cells) => cells.length === 1);
  return [...(trunks.length ? [trunks] : []), ...(hasSinglePorts ? [row.cells.slice(row.trunks)] : hosts.values())];
}
