// The fabric map: a cell per link, a row per leaf or rack, trunks before nodes. The shape shows the state, the colour
// shows the metric.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { heatColour } from "./heatmap_layout";
import {
  layOutPorts,
  MARKS,
  type MarkName,
  MEASURES,
  type Measure,
  markOf,
  NAME_WIDTH,
  type PlacedLink,
  type Row,
} from "./portmap_layout";

function drawMark(
  context: CanvasRenderingContext2D,
  mark: MarkName,
  x: number,
  y: number,
  size: number,
  colours: Record<string, string>,
): void {
  const c = size / 2;
  const r = size * 0.28;
  const mx = x + c;
  const my = y + c;
  context.beginPath();
  context.lineWidth = 1.4;
  if (mark === "down") {
    context.fillStyle = colours.bad;
    context.fillRect(x, y, size, size);
    context.strokeStyle = "#fff";
    context.moveTo(mx - r, my - r);
    context.lineTo(mx + r, my + r);
    context.moveTo(mx + r, my - r);
    context.lineTo(mx - r, my + r);
  } else if (mark === "event" || mark === "throttled") {
    const d = size * 0.42;
    context.moveTo(mx, my - d);
    if (mark === "event") {
      context.lineTo(mx + d, my);
      context.lineTo(mx, my + d);
      context.lineTo(mx - d, my);
    } else {
      context.lineTo(mx + d, my + d * 0.85);
      context.lineTo(mx - d, my + d * 0.85);
    }
    context.closePath();
    context.fillStyle = mark === "event" ? colours.bad : colours.warn;
    context.fill();
    context.strokeStyle = colours.panel;
    context.lineWidth = 0.8;
  } else if (mark === "waits") {
    context.strokeStyle = colours.panel;
    context.lineWidth = 4;
    context.moveTo(mx - 2, my - r - 1);
    context.lineTo(mx - 2, my + r + 1);
    context.moveTo(mx + 2, my - r - 1);
    context.lineTo(mx + 2, my + r + 1);
    context.stroke();
    context.beginPath();
    context.strokeStyle = colours.warn;
    context.lineWidth = 1.8;
    context.moveTo(mx - 2, my - r);
    context.lineTo(mx - 2, my + r);
    context.moveTo(mx + 2, my - r);
    context.lineTo(mx + 2, my + r);
  } else {
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    context.strokeStyle = colours.unknown;
    context.lineWidth = 1.3;
    context.moveTo(mx - r, my);
    context.lineTo(mx + r, my);
  }
  context.stroke();
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
  /** Links outside this set are dimmed; undefined dims none. */
  highlighted?: Set<string>;
}

export function PortMap(p: Props) {
  const container = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [selected, setSelected] = useState<number | null>(null);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(container.current!);
    return () => observer.disconnect();
  }, []);
  const layout = useMemo(
    () => (width ? layOutPorts(p.rows, width, Math.max(220, innerHeight * 0.42)) : null),
    [p.rows, width],
  );
  const { at: column, share, text } = MEASURES[p.measure];

  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!layout || !element || !context) return;
    const pixelRatio = devicePixelRatio || 1;
    const css = getComputedStyle(document.documentElement);
    const colours = Object.fromEntries(
      ["bad", "bad-text", "warn", "panel", "line", "unknown", "dim", "ink", "accent"].map((n) => [
        n,
        css.getPropertyValue(`--${n}`).trim(),
      ]),
    );
    element.width = width * pixelRatio;
    element.height = layout.height * pixelRatio;
    context.setTransform(pixelRatio, 0, 0, pixelRatio, 0, 0);
    context.clearRect(0, 0, width, layout.height);
    context.font = "11px system-ui, sans-serif";
    const size = layout.pitch - 2;
    context.fillStyle = colours.dim;
    for (const { x, text } of layout.captions) context.fillText(text, x, 9);
    for (const { x, y, row } of layout.names) {
      const portRow = p.rows[row];
      const name = portRow.name ?? "no rack";
      const isUnhealthy = portRow.state !== "healthy";
      context.fillStyle =
        p.row === (portRow.name ?? "") && p.row ? colours.accent : isUnhealthy ? colours.ink : colours.dim;
      context.fillText(name.length > 13 ? `${name.slice(0, 12)}…` : name, x, y + size / 2 + 4);
    }
    for (const { x, y, cell } of layout.links) {
      const value = cell[column];
      const mark = markOf(cell, p.states);
      context.globalAlpha = p.highlighted && !p.highlighted.has(cell[0]) ? 0.16 : 1;
      if (value != null && mark !== "silent") {
        context.fillStyle = heatColour(share(value));
        context.fillRect(x, y, size, size);
      }
      if (mark || value == null) drawMark(context, mark || "silent", x, y, size, colours);
    }
    context.globalAlpha = 1;
    const outline = (spot: PlacedLink | undefined, colour: string) => {
      if (spot) {
        context.strokeStyle = colour;
        context.lineWidth = 2;
        context.strokeRect(spot.x - 1.5, spot.y - 1.5, size + 3, size + 3);
      }
    };
    outline(
      layout.links.find((s) => s.cell[0] === p.chosen),
      colours.ink,
    );
    outline(selected == null ? undefined : layout.links[selected], colours.accent);
    element.dataset.drawn = String(layout.links.length);
  }, [layout, p.rows, p.measure, p.theme, p.chosen, p.highlighted, p.row, selected]);

  const linkIndexAt = (event: MouseEvent): number | null => {
    const index =
      layout?.links.findIndex(
        (s) =>
          event.offsetX >= s.x &&
          event.offsetX < s.x + layout.pitch &&
          event.offsetY >= s.y &&
          event.offsetY < s.y + layout.pitch,
      ) ?? -1;
    return index < 0 ? null : index;
  };
  const rowNameAt = (event: MouseEvent) =>
    layout?.names.find(
      (n) =>
        event.offsetX >= n.x &&
        event.offsetX < n.x + NAME_WIDTH - 4 &&
        event.offsetY >= n.y &&
        event.offsetY < n.y + layout.pitch,
    );
  const chooseAt = (event: MouseEvent) => {
    const index = linkIndexAt(event);
    const name = rowNameAt(event);
    if (index != null) p.choose(layout!.links[index].cell[0]);
    else if (name) p.chooseRow(p.rows[name.row].name ?? "");
  };
  const handleKey = (event: KeyboardEvent) => {
    if (!layout?.links.length) return;
    const current = selected == null ? undefined : layout.links[selected];
    const last = layout.links.length - 1;
    const nearestInRow = (row: number) =>
      layout.links.reduce(
        (best, s, i) =>
          s.row === row && (best < 0 || Math.abs(s.x - current!.x) < Math.abs(layout.links[best].x - current!.x))
            ? i
            : best,
        -1,
      );
    const steps: Record<string, () => number> = {
      ArrowRight: () => Math.min(last, (selected ?? -1) + 1),
      ArrowLeft: () => Math.max(0, (selected ?? 1) - 1),
      ArrowDown: () => (current ? nearestInRow(current.row + 1) : 0),
      ArrowUp: () => (current ? nearestInRow(current.row - 1) : 0),
    };
    const next = steps[event.key]?.();
    if (next !== undefined) {
      event.preventDefault();
      if (next >= 0) setSelected(next);
    }
    if (event.key === "Enter" && current) p.choose(current.cell[0]);
    if (event.key === "Escape") setSelected(null);
  };
  const spot = selected == null ? undefined : layout?.links[selected];
  const mark = spot && MARKS.find((m) => m.name === markOf(spot.cell, p.states));
  const links = layout?.links.length ?? 0;
  const description = `Map of ${links} links in ${p.rows.length} rows, coloured by ${MEASURES[p.measure].title}.`;
  return (
    <div class="heatmap" ref={container}>
      <canvas
        ref={canvas}
        data-testid="portmap"
        tabIndex={0}
        role="img"
        style={{ width: `${width}px`, height: `${layout?.height ?? 160}px` }}
        aria-label={`${description} Arrow keys move, Enter opens a link.`}
        onMouseMove={(e) => setSelected(linkIndexAt(e))}
        onMouseLeave={() => setSelected(null)}
        onClick={chooseAt}
        onKeyDown={handleKey}
      />
      {spot && (
        <div
          class="tip"
          role="status"
          data-testid="port-tip"
          style={{
            left: `${Math.max(0, Math.min(spot.x + layout!.pitch + 8, width - 230))}px`,
            top: `${spot.y + layout!.pitch + 6}px`,
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
