// The fleet as cells: one per GPU, a row per node, a block per rack or other failure domain. State is a shape, colour
// is the metric.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Fits } from "../lib/find";
import { many } from "../lib/format";
import type { Frame } from "../lib/live_types";
import { go, to } from "../lib/router";
import { STATES } from "../lib/states";
import type { Fleet, FleetNode } from "../lib/types";
import { draw } from "./heatmap_draw";
import { arrange, type Cell, type Layout, type Paint, wrongIn } from "./heatmap_layout";

const TIP = 250;

export interface Props {
  fleet: Fleet;
  frame?: Frame;
  paint: Paint;
  fits?: Fits;
  only?: (node: FleetNode) => boolean;
  by: string;
  theme: string;
  chooseBlock: (name: string) => void;
}

export function HeatMap(p: Props) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, measure] = useState(0);
  const [chosen, choose] = useState<number | null>(null);
  // Measured before the first paint: a map that gets its height a moment later pushes away what stands below it.
  useLayoutEffect(() => {
    measure(Math.floor(box.current!.clientWidth));
    const watch = new ResizeObserver(([entry]) => measure(Math.floor(entry.contentRect.width)));
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);
  const layout = useMemo(
    () => (width ? arrange(p.fleet, width, Math.max(240, innerHeight * 0.46), p.by, p.only) : null),
    [p.fleet, width, p.by, p.only],
  );
  const frame = p.frame && p.frame.version === p.fleet.version ? p.frame : undefined;
  useEffect(() => {
    if (layout && canvas.current) draw(canvas.current, width, layout, frame, p);
  }, [layout, frame, p.paint, p.fits, p.theme]);

  const hit = (event: MouseEvent) => {
    const found =
      layout?.cells.findIndex(
        (c) =>
          event.offsetX >= c.x &&
          event.offsetX < c.x + layout.pitch &&
          event.offsetY >= c.y &&
          event.offsetY < c.y + layout.pitch,
      ) ?? -1;
    return found < 0 ? null : found;
  };
  const label = (event: MouseEvent) =>
    layout?.labels.find(
      (l) =>
        event.offsetX >= l.x && event.offsetX <= l.x + l.wide && event.offsetY >= l.y - 11 && event.offsetY <= l.y + 5,
    );
  const cell = chosen == null ? undefined : layout?.cells[chosen];
  const open = (c?: Cell) => {
    if (c) go(c.gpu ? to.gpu(c.gpu.uuid) : to.node(c.node.name));
  };
  const click = (event: MouseEvent) => {
    const at = hit(event);
    const name = label(event);
    if (at != null) open(layout?.cells[at]);
    else if (name?.to === "block") p.chooseBlock(name.text);
    else if (name) go(to.node(name.text));
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
    if (step) {
      event.preventDefault();
      choose(Math.min(layout.cells.length - 1, Math.max(0, (chosen ?? -step) + step)));
    }
    if (event.key === "Enter" && cell) {
      event.stopPropagation();
      open(cell);
    }
    if (event.key === "Escape") choose(null);
  };
  const value = cell && frame ? frame.values[cell.slot] : NaN;
  const size = layout ? layout.pitch - (layout.pitch > 12 ? 2 : 1) : 0;
  const extent = `${many(layout?.cells.length ?? 0, "GPU")} in ${many(layout?.blocks ?? 0, "block")}`;
  const about = `Map of ${extent} by ${p.by}, coloured by ${p.paint.title}.`;
  return (
    <div class="heatmap" ref={box}>
      <canvas
        ref={canvas}
        data-testid="heatmap"
        data-pitch={layout?.pitch}
        tabIndex={0}
        role="img"
        style={{ width: `${width}px`, height: `${layout?.height ?? 300}px` }}
        aria-label={`${about}${told(layout, frame)} Arrow keys move, Enter opens a GPU.`}
        onMouseMove={point}
        onMouseLeave={() => choose(null)}
        onClick={click}
        onKeyDown={keys}
      />
      {cell && layout && (
        <>
          <div
            class="ring"
            style={{ left: `${cell.x - 2}px`, top: `${cell.y - 2}px`, width: `${size + 4}px`, height: `${size + 4}px` }}
          />
          <div
            class="tip"
            role="status"
            data-testid="tip"
            style={{
              left: `${Math.max(0, Math.min(cell.x + layout.pitch + 8, width - TIP))}px`,
              top: `${cell.y + layout.pitch + 6}px`,
            }}
          >
            <b>
              {cell.node.name} · {cell.gpu ? `GPU ${cell.gpu.index ?? "?"}` : "expected, never reported"}
            </b>
            {describe(cell, frame, p, value).map((line) => (
              <span key={line}>{line}</span>
            ))}
          </div>
        </>
      )}
    </div>
  );
}

const MOST_TOLD = 8;

/** What the map shows, for those who do not see it: the blocks with trouble, the first of them by name. */
function told(layout: Layout | null, frame: Frame | undefined): string {
  const wrong =
    layout && frame
      ? [...layout.trouble.keys()]
          .map((name) => [name, wrongIn(layout, frame, name)] as const)
          .filter(([, found]) => found.length)
      : [];
  const some = wrong
    .slice(0, MOST_TOLD)
    .map(([name, found]) => `${name} ${found.map(([state, n]) => `${n} ${STATES[state].text}`).join(", ")}`);
  return wrong.length
    ? ` Problems: ${some.join("; ")}${wrong.length > MOST_TOLD ? `; and ${wrong.length - MOST_TOLD} more` : ""}.`
    : "";
}

function describe(cell: Cell, frame: Frame | undefined, { paint, fleet }: Props, value: number): string[] {
  const state = STATES[frame ? frame.states[cell.slot] : 6];
  const holder = cell.gpu?.workload;
  const team = holder && fleet.teams?.[holder];
  const domains = Object.entries(cell.node.domains)
    .map(([name, where]) => `${name} ${where}`)
    .join(" · ");
  return [
    `${state.glyph} ${state.text}`.trim(),
    paint.tell(cell, value),
    fleet.workloads
      ? holder
        ? `allocated to ${holder}${team && !holder.startsWith(`${team}/`) ? `, team ${team}` : ""}`
        : "free"
      : "holder unknown",
    [cell.gpu?.model, domains].filter(Boolean).join(" · "),
  ].filter(Boolean);
}
