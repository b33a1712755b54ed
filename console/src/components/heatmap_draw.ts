// The map's cells on a canvas: state is a shape, colour is the metric.

import type { Frame } from "../lib/live_types";
import { STATES } from "../lib/states";
import type { Props } from "./heatmap";
import { type Layout, wrongIn } from "./heatmap_layout";

type Inks = Record<string, string>;

export function glyph(
  pen: CanvasRenderingContext2D,
  state: number,
  x: number,
  y: number,
  size: number,
  ink: Inks,
): void {
  const c = size / 2;
  const r = size * 0.3;
  const mx = x + c;
  const my = y + c;
  pen.beginPath();
  pen.lineWidth = Math.max(1, size / 9);
  if (state === 1) {
    pen.fillStyle = ink.bad;
    pen.fillRect(x, y, size, size);
    pen.strokeStyle = "#fff";
    pen.moveTo(mx - r, my - r);
    pen.lineTo(mx + r, my + r);
    pen.moveTo(mx + r, my - r);
    pen.lineTo(mx - r, my + r);
    pen.stroke();
  } else if (state === 2 || state === 3) {
    const d = size * 0.42;
    pen.moveTo(mx, my - d);
    if (state === 2) {
      pen.lineTo(mx + d, my);
      pen.lineTo(mx, my + d);
      pen.lineTo(mx - d, my);
    } else {
      pen.lineTo(mx + d, my + d * 0.85);
      pen.lineTo(mx - d, my + d * 0.85);
    }
    pen.closePath();
    pen.fillStyle = state === 2 ? ink.bad : ink.warn;
    pen.fill();
    pen.strokeStyle = ink.panel;
    pen.lineWidth = Math.max(0.7, size / 14);
    pen.stroke();
  } else if (state === 4 || state === 6) {
    // A rack that says nothing must not look like a gap in the map.
    pen.strokeStyle = state === 4 ? ink.unknown : ink.line;
    pen.lineWidth = 1;
    pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    pen.strokeStyle = ink.unknown;
    pen.lineWidth = Math.max(1, size / 8);
    pen.moveTo(mx - (state === 4 ? r : 0.5), my);
    pen.lineTo(mx + (state === 4 ? r : 0.5), my);
    pen.stroke();
  } else if (state === 5) {
    // Light on dark cells, dark on light ones: a ring is seen on both ends of the scale.
    pen.strokeStyle = ink.ring;
    pen.lineWidth = Math.max(0.8, size / 11);
    pen.arc(mx, my, r * 0.85, 0, 7);
    pen.stroke();
  }
}

export function draw(
  sheet: HTMLCanvasElement,
  width: number,
  layout: Layout,
  frame: Frame | undefined,
  p: Props,
): void {
  const pen = sheet.getContext("2d");
  if (!pen) return;
  const sharp = devicePixelRatio || 1;
  const css = getComputedStyle(document.documentElement);
  const ink: Inks = Object.fromEntries(
    ["bad", "bad-text", "warn", "warn-text", "panel", "line", "unknown", "dim"].map((n) => [
      n,
      css.getPropertyValue(`--${n}`),
    ]),
  );
  ink.ring = "#dbe7f3";
  if (sheet.width !== width * sharp || sheet.height !== layout.height * sharp) {
    sheet.width = width * sharp;
    sheet.height = layout.height * sharp;
  }
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
    const { x, y, slot } = cell;
    const value = frame ? frame.values[slot] : NaN;
    const state = frame ? frame.states[slot] : 6;
    pen.globalAlpha = p.fits && !p.fits(cell.node, cell.gpu, state) ? 0.16 : 1;
    const colour = state === 4 || state === 6 ? null : p.paint.colour(cell, value);
    if (colour) {
      pen.fillStyle = colour;
      pen.fillRect(x, y, size, size);
    }
    if (state || !colour) glyph(pen, state || 4, x, y, size, ink);
  }
  pen.globalAlpha = 1;
  sheet.dataset.drawn = frame ? frame.at : "";
}
