// Where each cell of the map lies, how it is coloured, and what is wrong in a block.

import { quantity } from "../lib/format";
import type { Frame } from "../lib/live_types";
import type { Fleet, FleetNode, Gpu } from "../lib/types";

// One hue, dark to light, in both themes: status colours stay free for status.
const LOW = [0x1f, 0x3b, 0x57];

const HIGH = [0xa9, 0xd6, 0xf5];

export const heat = (share: number) =>
  `rgb(${LOW.map((low, i) => Math.round(low + (HIGH[i] - low) * Math.min(1, Math.max(0, share)))).join(" ")})`;

const STEPS = 64;

const SCALE = Array.from({ length: STEPS + 1 }, (_, i) => heat(i / STEPS));

const LABEL = 16;

const GAP = 8;

const BETWEEN = 14;

const NAME = 104;

const LARGEST = 22;

const SMALLEST = 5;

export interface Cell {
  x: number;
  y: number;
  node: FleetNode;
  gpu: Gpu | null;
  slot: number;
}

interface Label {
  x: number;
  y: number;
  text: string;
  to: "block" | "node";
  wide: number;
}

export interface Layout {
  cells: Cell[];
  labels: Label[];
  pitch: number;
  height: number;
  blocks: number;
  trouble: Map<string, number[]>;
}

/** How a cell is painted and called: by a metric, or by the group it belongs to. */
export interface Paint {
  title: string;
  unit: string;
  colour: (cell: Cell, value: number) => string | null;
  tell: (cell: Cell, value: number) => string;
}

export const scaled = (title: string, unit: string, low: number, high: number): Paint => ({
  title,
  unit,
  colour: (_cell, value) =>
    Number.isNaN(value)
      ? null
      : SCALE[Math.min(STEPS, Math.max(0, Math.round((STEPS * (value - low)) / (high - low))))],
  tell: (_cell, value) => `${title}: ${quantity(value, unit)}`,
});

/** The largest cells with which the fleet fits the height and fills the width; at 5 px it scrolls instead. */
export function arrange(
  fleet: Fleet,
  width: number,
  room: number,
  by: string,
  only?: (node: FleetNode) => boolean,
): Layout {
  const blocks = new Map<string, { node: FleetNode; first: number }[]>();
  let slot = 0;
  for (const node of fleet.nodes) {
    const name = (by === "pool" ? node.pool : node.domains[by]) ?? (by === "rack" ? node.rack : null) ?? `no ${by}`;
    if (!only || only(node)) blocks.set(name, [...(blocks.get(name) ?? []), { node, first: slot }]);
    slot += node.gpus.length;
  }
  const shown = [...blocks.values()];
  const named = shown.reduce((sum, rows) => sum + rows.length, 0) <= 48;
  const before = named ? NAME : 0;
  const across = Math.max(1, ...shown.flatMap((rows) => rows.map(({ node }) => node.gpus.length)));
  const down = Math.max(1, ...shown.map((rows) => rows.length));
  const evenly = (pitch: number) => {
    const most = Math.max(1, Math.floor((width + GAP) / (before + across * pitch + GAP)));
    return Math.ceil(blocks.size / Math.ceil(blocks.size / most)) || 1;
  };
  const fitting = Array.from({ length: LARGEST - 4 }, (_, i) => LARGEST - i).filter(
    (pitch) =>
      Math.ceil(blocks.size / evenly(pitch)) * (down * pitch + LABEL + BETWEEN) <= room &&
      before + across * pitch <= width,
  );
  // Rows that fill the width look better than slightly larger cells with wide gaps between the blocks.
  const full = fitting.find(
    (pitch) => evenly(pitch) >= blocks.size || evenly(pitch) * (before + across * pitch + GAP) >= 0.85 * width,
  );
  const pitch = full ?? fitting[0] ?? SMALLEST;
  const perRow = evenly(pitch);
  const own = before + across * pitch;
  const stride = Math.max(own + GAP, perRow >= blocks.size ? 0 : Math.floor((width + GAP) / perRow));
  const layout: Layout = { cells: [], labels: [], pitch, height: 0, blocks: blocks.size, trouble: new Map() };
  let at = 0;
  let top = 0;
  let tallest = 0;
  for (const [name, rows] of blocks) {
    if (at % perRow === 0) {
      top += at ? tallest + LABEL + BETWEEN : 0;
      tallest = 0;
    }
    const left = Math.round((at % perRow) * stride);
    layout.labels.push({ x: left, y: top + 11, text: name, to: "block", wide: own });
    layout.trouble.set(
      name,
      rows.flatMap(({ node, first }) => node.gpus.map((_, i) => first + i)),
    );
    rows.forEach(({ node, first }, row) => {
      const y = top + LABEL + row * pitch;
      if (named) layout.labels.push({ x: left, y: y + pitch / 2 + 3, text: node.name, to: "node", wide: NAME - 6 });
      node.gpus.forEach((gpu, column) => {
        layout.cells.push({ x: left + before + column * pitch, y, node, gpu, slot: first + column });
      });
    });
    tallest = Math.max(tallest, rows.length * pitch);
    at++;
  }
  layout.height = top + tallest + LABEL;
  return layout;
}

/** How many GPUs of a block are down, have an event, throttle or do not report. */
export function wrongIn(layout: Layout, frame: Frame, block: string): [state: number, gpus: number][] {
  const found = [0, 0, 0, 0, 0];
  for (const slot of layout.trouble.get(block) ?? [])
    if (frame.states[slot] < found.length) found[frame.states[slot]]++;
  return found
    .map((n, state): [number, number] => [state, n])
    .slice(1)
    .filter(([, n]) => n > 0);
}
