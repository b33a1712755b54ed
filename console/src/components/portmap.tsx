// The fabric as cells: one per link, a row per leaf (or rack), trunks before hosts. State is a shape, colour is the
// metric.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { heat } from "./heatmap_layout";
import {
  arrange,
  MARKS,
  type MarkName,
  MEASURES,
  type Measure,
  markOf,
  NAME,
  type Row,
  type Spot,
} from "./portmap_layout";

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
  const links = sheet?.spots.length ?? 0;
  const about = `Map of ${links} links in ${p.rows.length} rows, coloured by ${MEASURES[p.measure].title}.`;
  return (
    <div class="heatmap" ref={box}>
      <canvas
        ref={canvas}
        data-testid="portmap"
        tabIndex={0}
        role="img"
        style={{ width: `${width}px`, height: `${sheet?.height ?? 160}px` }}
        aria-label={`${about} Arrow keys move, Enter opens a link.`}
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
