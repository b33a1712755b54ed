// The fleet map: a cell per GPU, a row per node, a block per rack or other failure domain. The shape shows the state,
// the colour shows the metric.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { plural } from "../lib/format";
import type { GpuFilter } from "../lib/gpu_filter";
import type { Frame } from "../lib/live_types";
import { navigate, to } from "../lib/router";
import { outOfService, STATES } from "../lib/states";
import type { Fleet, FleetNode } from "../lib/types";
import { drawMap } from "./heatmap_draw";
import { type Cell, countProblems, type Layout, layOutFleet, type Paint } from "./heatmap_layout";

const TIP_WIDTH = 250;

export interface Props {
  fleet: Fleet;
  frame?: Frame;
  paint: Paint;
  filter?: GpuFilter;
  nodeFilter?: (node: FleetNode) => boolean;
  by: string;
  theme: string;
  chooseBlock: (name: string) => void;
}

export function HeatMap(p: Props) {
  const container = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [selected, setSelected] = useState<number | null>(null);
  // Measure before the first paint, so that the content below does not move.
  useLayoutEffect(() => {
    setWidth(Math.floor(container.current!.clientWidth));
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(container.current!);
    return () => observer.disconnect();
  }, []);
  const layout = useMemo(
    () => (width ? layOutFleet(p.fleet, width, Math.max(240, innerHeight * 0.46), p.by, p.nodeFilter) : null),
    [p.fleet, width, p.by, p.nodeFilter],
  );
  const frame = p.frame && p.frame.version === p.fleet.version ? p.frame : undefined;
  useEffect(() => {
    if (layout && canvas.current) drawMap(canvas.current, width, layout, frame, p);
  }, [layout, frame, p.paint, p.filter, p.theme]);

  const cellIndexAt = (event: MouseEvent) => {
    const index =
      layout?.cells.findIndex(
        (c) =>
          event.offsetX >= c.x &&
          event.offsetX < c.x + layout.pitch &&
          event.offsetY >= c.y &&
          event.offsetY < c.y + layout.pitch,
      ) ?? -1;
    return index < 0 ? null : index;
  };
  const labelAt = (event: MouseEvent) =>
    layout?.labels.find(
      (l) =>
        event.offsetX >= l.x && event.offsetX <= l.x + l.width && event.offsetY >= l.y - 11 && event.offsetY <= l.y + 5,
    );
  const cell = selected == null ? undefined : layout?.cells[selected];
  const open = (c?: Cell) => {
    if (c) navigate(c.gpu ? to.gpu(c.gpu.uuid) : to.node(c.node.name));
  };
  const openAt = (event: MouseEvent) => {
    const at = cellIndexAt(event);
    const label = labelAt(event);
    if (at != null) open(layout?.cells[at]);
    else if (label?.to === "block") p.chooseBlock(label.text);
    else if (label) navigate(to.node(label.text));
  };
  const hover = (event: MouseEvent) => {
    const at = cellIndexAt(event);
    setSelected(at);
    canvas.current!.style.cursor = at != null || labelAt(event) ? "pointer" : "default";
  };
  const handleKey = (event: KeyboardEvent) => {
    if (!layout) return;
    const cellsPerRow = cell ? cell.node.gpus.length : 8;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: cellsPerRow, ArrowUp: -cellsPerRow }[event.key];
    if (step) {
      event.preventDefault();
      setSelected(Math.min(layout.cells.length - 1, Math.max(0, (selected ?? -step) + step)));
    }
    if (event.key === "Enter" && cell) {
      event.stopPropagation();
      open(cell);
    }
    if (event.key === "Escape") setSelected(null);
  };
  const value = cell && frame ? frame.values[cell.slot] : NaN;
  const size = layout ? layout.pitch - (layout.pitch > 12 ? 2 : 1) : 0;
  const sizeText = `${plural(layout?.cells.length ?? 0, "GPU")} in ${plural(layout?.blocks ?? 0, "block")}`;
  const description = `Map of ${sizeText} by ${p.by}, coloured by ${p.paint.title}.`;
  return (
    <div class="heatmap" ref={container}>
      <canvas
        ref={canvas}
        data-testid="heatmap"
        data-pitch={layout?.pitch}
        tabIndex={0}
        role="img"
        style={{ width: `${width}px`, height: `${layout?.height ?? 300}px` }}
        aria-label={`${description}${describeProblems(layout, frame)} Arrow keys move, Enter opens a GPU.`}
        onMouseMove={hover}
        onMouseLeave={() => setSelected(null)}
        onClick={openAt}
        onKeyDown={handleKey}
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
              left: `${Math.max(0, Math.min(cell.x + layout.pitch + 8, width - TIP_WIDTH))}px`,
              top: `${cell.y + layout.pitch + 6}px`,
            }}
          >
            <b>
              {cell.node.name} · {cell.gpu ? `GPU ${cell.gpu.index ?? "?"}` : "expected, never reported"}
            </b>
            {describeCell(cell, frame, p, value).map((line) => (
              <span key={line}>{line}</span>
            ))}
          </div>
        </>
      )}
    </div>
  );
}

const MAX_LISTED_BLOCKS = 8;

/** The problems on the map as text, for screen readers: the first blocks with their counts. */
function describeProblems(layout: Layout | null, frame: Frame | undefined): string {
  const problemBlocks =
    layout && frame
      ? [...layout.slotsByBlock.keys()]
          .map((name) => [name, countProblems(layout, frame, name)] as const)
          .filter(([, problems]) => problems.length)
      : [];
  const texts = problemBlocks
    .slice(0, MAX_LISTED_BLOCKS)
    .map(([name, problems]) => `${name} ${problems.map(([state, n]) => `${n} ${STATES[state].text}`).join(", ")}`);
  const hiddenCount = problemBlocks.length - texts.length;
  if (hiddenCount) texts.push(`and ${hiddenCount} more`);
  return texts.length ? ` Problems: ${texts.join("; ")}.` : "";
}

function describeCell(cell: Cell, frame: Frame | undefined, { paint, fleet }: Props, value: number): string[] {
  const state = STATES[frame ? frame.states[cell.slot] : 6];
  const holder = cell.gpu?.workload;
  const team = holder && fleet.teams?.[holder];
  const domains = Object.entries(cell.node.domains)
    .map(([name, where]) => `${name} ${where}`)
    .join(" · ");
  return [
    `${state.glyph} ${state.text}`.trim(),
    outOfService(frame, fleet, cell.node.name) ?? "",
    paint.describe(cell, value),
    fleet.workloads
      ? holder
        ? `allocated to ${holder}${team && !holder.startsWith(`${team}/`) ? `, team ${team}` : ""}`
        : "free"
      : "holder unknown",
    [cell.gpu?.model, domains].filter(Boolean).join(" · "),
  ].filter(Boolean);
}
