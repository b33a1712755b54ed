// Layout of the fleet map: the position and colour of each cell, and the problems of each block.

import { quantity } from "../lib/format";
import type { Frame } from "../lib/live_types";
import type { Fleet, FleetNode, Gpu } from "../lib/types";

// One hue, dark to light, in both themes, so that no metric has a status colour.
const LOW = [0x1f, 0x3b, 0x57];

const HIGH = [0xa9, 0xd6, 0xf5];

export const heatColour = (share: number) =>
  `rgb(${LOW.map((low, i) => Math.round(low + (HIGH[i] - low) * Math.min(1, Math.max(0, share)))).join(" ")})`;

const STEPS = 64;

const SCALE = Array.from({ length: STEPS + 1 }, (_, i) => heatColour(i / STEPS));

const LABEL_HEIGHT = 16;

const GAP = 8;

const BETWEEN = 14;

const NAME_WIDTH = 104;

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
  width: number;
}

export interface Layout {
  cells: Cell[];
  labels: Label[];
  pitch: number;
  height: number;
  blocks: number;
  slotsByBlock: Map<string, number[]>;
}

/** How a cell is coloured and described: by a metric, or by the group of its GPU. */
export interface Paint {
  title: string;
  unit: string;
  colour: (cell: Cell, value: number) => string | null;
  describe: (cell: Cell, value: number) => string;
}

export const metricPaint = (title: string, unit: string, low: number, high: number): Paint => ({
  title,
  unit,
  colour: (_cell, value) =>
    Number.isNaN(value)
      ? null
      : SCALE[Math.min(STEPS, Math.max(0, Math.round((STEPS * (value - low)) / (high - low))))],
  describe: (_cell, value) => `${title}: ${quantity(value, unit)}`,
});

/** Lay out the fleet with the largest cells that fit the height and fill the width; below 5 px the page scrolls. */
export function layOutFleet(
  fleet: Fleet,
  width: number,
  maxHeight: number,
  by: string,
  nodeFilter?: (node: FleetNode) => boolean,
): Layout {
  const blocks = new Map<string, { node: FleetNode; first: number }[]>();
  let slot = 0;
  for (const node of fleet.nodes) {
    const name = (by === "pool" ? node.pool : node.domains[by]) ?? (by === "rack" ? node.rack : null) ?? `no ${by}`;
    if (!nodeFilter || nodeFilter(node)) blocks.set(name, [...(blocks.get(name) ?? []), { node, first: slot }]);
    slot += node.gpus.length;
  }
  const shown = [...blocks.values()];
  const showsNames = shown.reduce((sum, rows) => sum + rows.length, 0) <= 48;
  const nameWidth = showsNames ? NAME_WIDTH : 0;
  const maxGpus = Math.max(1, ...shown.flatMap((rows) => rows.map(({ node }) => node.gpus.length)));
  const maxNodes = Math.max(1, ...shown.map((rows) => rows.length));
  const blocksPerRow = (pitch: number) => {
    const maxPerRow = Math.max(1, Math.floor((width + GAP) / (nameWidth + maxGpus * pitch + GAP)));
    return Math.ceil(blocks.size / Math.ceil(blocks.size / maxPerRow)) || 1;
  };
  const fittingPitches = Array.from({ length: LARGEST - 4 }, (_, i) => LARGEST - i).filter(
    (pitch) =>
      Math.ceil(blocks.size / blocksPerRow(pitch)) * (maxNodes * pitch + LABEL_HEIGHT + BETWEEN) <= maxHeight &&
      nameWidth + maxGpus * pitch <= width,
  );
  // Rows that fill the width look better than slightly larger cells with wide gaps between the blocks.
  const fillingPitch = fittingPitches.find(
    (pitch) =>
      blocksPerRow(pitch) >= blocks.size || blocksPerRow(pitch) * (nameWidth + maxGpus * pitch + GAP) >= 0.85 * width,
  );
  const pitch = fillingPitch ?? fittingPitches[0] ?? SMALLEST;
  const perRow = blocksPerRow(pitch);
  const blockWidth = nameWidth + maxGpus * pitch;
  const stride = Math.max(blockWidth + GAP, perRow >= blocks.size ? 0 : Math.floor((width + GAP) / perRow));
  const layout: Layout = { cells: [], labels: [], pitch, height: 0, blocks: blocks.size, slotsByBlock: new Map() };
  let blockIndex = 0;
  let top = 0;
  let tallest = 0;
  for (const [name, rows] of blocks) {
    if (blockIndex % perRow === 0) {
      top += blockIndex ? tallest + LABEL_HEIGHT + BETWEEN : 0;
      tallest = 0;
    }
    const left = Math.round((blockIndex % perRow) * stride);
    layout.labels.push({ x: left, y: top + 11, text: name, to: "block", width: blockWidth });
    layout.slotsByBlock.set(
      name,
      rows.flatMap(({ node, first }) => node.gpus.map((_, i) => first + i)),
    );
    rows.forEach(({ node, first }, row) => {
      const y = top + LABEL_HEIGHT + row * pitch;
      if (showsNames)
        layout.labels.push({ x: left, y: y + pitch / 2 + 3, text: node.name, to: "node", width: NAME_WIDTH - 6 });
      node.gpus.forEach((gpu, column) => {
        layout.cells.push({ x: left + nameWidth + column * pitch, y, node, gpu, slot: first + column });
      });
    });
    tallest = Math.max(tallest, rows.length * pitch);
    blockIndex++;
  }
  layout.height = top + tallest + LABEL_HEIGHT;
  return layout;
}

const PROBLEM_STATES = [1, 2, 3, 4, 7];

/** Count the GPUs of a block that are down, have an event, are throttled, do not report, or are out of service. */
export function countProblems(layout: Layout, frame: Frame, block: string): [state: number, gpus: number][] {
  const counts = new Map<number, number>();
  for (const slot of layout.slotsByBlock.get(block) ?? [])
    counts.set(frame.states[slot], (counts.get(frame.states[slot]) ?? 0) + 1);
  return PROBLEM_STATES.map((state): [number, number] => [state, counts.get(state) ?? 0]).filter(([, n]) => n > 0);
}
