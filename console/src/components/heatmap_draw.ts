// Draws the fleet map on a canvas: the shape shows the state, the colour shows the metric.

import type { Frame } from "../lib/live_types";
import { STATES } from "../lib/states";
import type { Props } from "./heatmap";
import { countProblems, type Layout } from "./heatmap_layout";

type Colours = Record<string, string>;

export function drawGlyph(
  context: CanvasRenderingContext2D,
  state: number,
  x: number,
  y: number,
  size: number,
  colours: Colours,
): void {
  const c = size / 2;
  const r = size * 0.3;
  const mx = x + c;
  const my = y + c;
  context.beginPath();
  context.lineWidth = Math.max(1, size / 9);
  if (state === 1) {
    context.fillStyle = colours.bad;
    context.fillRect(x, y, size, size);
    context.strokeStyle = "#fff";
    context.moveTo(mx - r, my - r);
    context.lineTo(mx + r, my + r);
    context.moveTo(mx + r, my - r);
    context.lineTo(mx - r, my + r);
    context.stroke();
  } else if (state === 2 || state === 3) {
    const d = size * 0.42;
    context.moveTo(mx, my - d);
    if (state === 2) {
      context.lineTo(mx + d, my);
      context.lineTo(mx, my + d);
      context.lineTo(mx - d, my);
    } else {
      context.lineTo(mx + d, my + d * 0.85);
      context.lineTo(mx - d, my + d * 0.85);
    }
    context.closePath();
    context.fillStyle = state === 2 ? colours.bad : colours.warn;
    context.fill();
    context.strokeStyle = colours.panel;
    context.lineWidth = Math.max(0.7, size / 14);
    context.stroke();
  } else if (state === 4 || state === 6) {
    // A rack that does not report must not look like a gap in the map.
    context.strokeStyle = state === 4 ? colours.unknown : colours.line;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    context.strokeStyle = colours.unknown;
    context.lineWidth = Math.max(1, size / 8);
    context.moveTo(mx - (state === 4 ? r : 0.5), my);
    context.lineTo(mx + (state === 4 ? r : 0.5), my);
    context.stroke();
  } else if (state === 5) {
    // The ring is visible at both ends of the colour scale.
    context.strokeStyle = colours.ring;
    context.lineWidth = Math.max(0.8, size / 11);
    context.arc(mx, my, r * 0.85, 0, 7);
    context.stroke();
  } else if (state === 7) {
    context.strokeStyle = colours.warn;
    context.arc(mx, my, r, 0, 7);
    context.moveTo(mx - r * 0.7, my + r * 0.7);
    context.lineTo(mx + r * 0.7, my - r * 0.7);
    context.stroke();
  }
}

export function drawMap(
  canvas: HTMLCanvasElement,
  width: number,
  layout: Layout,
  frame: Frame | undefined,
  p: Props,
): void {
  const context = canvas.getContext("2d");
  if (!context) return;
  const pixelRatio = devicePixelRatio || 1;
  const css = getComputedStyle(document.documentElement);
  const colours: Colours = Object.fromEntries(
    ["bad", "bad-text", "warn", "warn-text", "panel", "line", "unknown", "dim"].map((n) => [
      n,
      css.getPropertyValue(`--${n}`),
    ]),
  );
  colours.ring = "#dbe7f3";
  if (canvas.width !== width * pixelRatio || canvas.height !== layout.height * pixelRatio) {
    canvas.width = width * pixelRatio;
    canvas.height = layout.height * pixelRatio;
  }
  context.setTransform(pixelRatio, 0, 0, pixelRatio, 0, 0);
  context.clearRect(0, 0, width, layout.height);
  context.font = "10.5px system-ui, sans-serif";
  for (const label of layout.labels) {
    context.fillStyle = colours.dim;
    context.fillText(label.text, label.x, label.y, label.width);
    if (label.to !== "block" || !frame) continue;
    // The problem counts of a block are next to its name.
    let x = label.x + Math.min(label.width, context.measureText(label.text).width) + 6;
    for (const [state, n] of countProblems(layout, frame, label.text)) {
      const text = `${STATES[state].glyph}${n}`;
      if (x + context.measureText(text).width > label.x + label.width) continue;
      context.fillStyle = colours[state < 3 ? "bad-text" : "warn-text"];
      context.fillText(text, x, label.y);
      x += context.measureText(text).width + 5;
    }
  }
  const size = layout.pitch - (layout.pitch > 12 ? 2 : 1);
  const nodesOut = new Set(Object.keys(frame?.out_of_service ?? {}).map((index) => p.fleet.nodes[Number(index)]));
  for (const cell of layout.cells) {
    const { x, y, slot } = cell;
    const value = frame ? frame.values[slot] : NaN;
    const state = frame ? frame.states[slot] : 6;
    context.globalAlpha = p.filter && !p.filter(cell.node, cell.gpu, state) ? 0.16 : 1;
    const colour = state === 4 || state === 6 ? null : p.paint.colour(cell, value);
    if (colour) {
      context.fillStyle = colour;
      context.fillRect(x, y, size, size);
    }
    if (state || !colour) drawGlyph(context, state || 4, x, y, size, colours);
    if (nodesOut.has(cell.node)) {
      // Whatever the state of the GPU, its node starts no workloads.
      context.strokeStyle = colours.warn;
      context.lineWidth = 1;
      context.strokeRect(x - 0.5, y - 0.5, size + 1, size + 1);
    }
  }
  context.globalAlpha = 1;
  canvas.dataset.drawn = frame ? frame.at : "";
}
