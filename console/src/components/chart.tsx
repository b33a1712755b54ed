// A chart of lines over time, in bands or on one scale, with a crosshair that the charts of a page share, and the same
// values as a table.

import { useEffect, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import { dateTime, quantity, timeOfDay, utcTime } from "../lib/format";
import type { Line, Mark } from "../lib/lines";
import { setParam, useAddress } from "../lib/router";
import { now } from "../lib/store";
import { csv, download } from "./table";

interface Props {
  id: string;
  /** What the chart shows, for screen readers. */
  name: string;
  /** Seconds since 1970, ascending; all lines have a value or null for each. */
  times: number[] | undefined;
  lines: Line[];
  start?: number;
  end?: number;
  marks?: Mark[];
  theme: string;
  /** One band with its own scale for each line; otherwise all lines share one scale. */
  bands?: boolean;
  /** Height in pixels of one band, or of the chart without bands. */
  height?: number;
  /** Called with the start and end in seconds when a user selects a range by dragging. */
  zoom?: (from: number, until: number) => void;
  problem?: string;
}
const AXIS = 26;
const TOP = 28;
const MOST_ROWS = 400;

export function Chart(p: Props) {
  const container = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latestProps = useRef<Props>(p);
  const [plotModule, setPlotModule] = useState<typeof import("../lib/plot") | null>(null);
  const [cursorIndex, setCursorIndex] = useState<number | null>(null);
  const address = useAddress();
  const showsTable = address.searchParams.get("numbers") === p.id;
  const bands = Boolean(p.bands);
  const bandHeight = p.height ?? (bands ? 46 : 220);
  const height = bands ? p.lines.length * bandHeight + AXIS + TOP : bandHeight;
  latestProps.current = p;
  const plotInput = () => {
    const { times = [], lines, marks = [], start, end, zoom } = latestProps.current;
    return {
      times,
      lines,
      marks,
      zoom,
      bands,
      height,
      start: start ?? times[0] ?? 0,
      end: end ?? times[times.length - 1] ?? 1,
      point: setCursorIndex,
    };
  };
  useEffect(() => {
    import("../lib/plot").then(setPlotModule);
  }, []);
  const lineVersion = p.lines.map((l) => `${l.label} ${l.tone} ${Boolean(l.low)}`).join("\n");
  const isReady = Boolean(p.times && plotModule);
  useEffect(() => {
    const host = container.current;
    if (!isReady || !host || showsTable) return;
    plot.current = plotModule!.createPlot(host, plotInput);
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: Math.max(60, host.clientWidth), height }));
    observer.observe(host);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [isReady, showsTable, p.theme, lineVersion, height, Boolean(p.zoom)]);
  useEffect(() => {
    if (isReady && plot.current) plot.current.setData(plotModule!.alignedData(plotInput()));
  }, [p.times, p.lines, p.start, p.end]);
  useEffect(() => plot.current?.redraw(false), [JSON.stringify(p.marks)]);

  const times = p.times ?? [];
  const step = times.length > 1 ? times[1] - times[0] : 15;
  const readingText = (line: Line) => {
    const last = line.values.findLastIndex((v) => v != null);
    // A stale reading must not look current.
    const isStale =
      cursorIndex == null &&
      last >= 0 &&
      times[last] < Math.min(p.end ?? Infinity, now() / 1000) - Math.max(60, 3 * step);
    return times.length ? `${isStale ? "last " : ""}${quantity(line.values[cursorIndex ?? last], line.unit)}` : "";
  };
  const cursorMs = cursorIndex != null && times[cursorIndex] ? times[cursorIndex] * 1000 : null;
  return (
    <div
      class={`chart ${bands ? "strips" : "one"}`}
      data-testid={p.id}
      data-ready={isReady || (showsTable && p.times) ? "yes" : "no"}
    >
      {p.problem && (
        <p class="problem" role="alert">
          Loading the chart failed: {p.problem}
        </p>
      )}
      {showsTable && p.times ? (
        <ValueTable name={p.name} times={times} lines={p.lines} />
      ) : (
        <>
          <div class="labels" style={bands ? { paddingTop: `${TOP}px` } : undefined}>
            {p.lines.map((line) => (
              <div key={line.label} style={bands ? { height: `${bandHeight}px` } : undefined}>
                <span class={`key ${line.tone ?? "accent"}${line.dashed ? " dashed" : ""}`} />
                {line.group && <small>{line.group}</small>}
                <span class="label" title={line.label}>
                  {line.label}
                </span>
                <b>{readingText(line)}</b>
              </div>
            ))}
          </div>
          <div
            class="plot"
            ref={container}
            role="img"
            aria-label={`${p.name}. Use the button below to show the values as a table.`}
            style={{ minHeight: `${height}px` }}
          >
            {!isReady && !p.problem && (
              <div class="bone" style={{ height: `${Math.max(20, height - AXIS - (bands ? TOP : 0))}px` }} />
            )}
            {cursorMs && (
              <span class="at" title={utcTime(cursorMs)}>
                {timeOfDay(cursorMs)}
              </span>
            )}
          </div>
        </>
      )}
      <p class="foot-line">
        <button
          type="button"
          class="plain"
          aria-pressed={showsTable}
          data-testid={`${p.id}-numbers`}
          onClick={() => setParam("numbers", showsTable ? null : p.id)}
        >
          {showsTable ? "Chart" : "Table"}
        </button>
        <button
          type="button"
          class="plain"
          data-export
          data-testid={`${p.id}-csv`}
          title="Export these values as CSV"
          onClick={() => download(`${p.id}.csv`, toCsv(times, p.lines))}
        >
          CSV
        </button>
      </p>
    </div>
  );
}

function ValueTable({ name, times, lines }: { name: string; times: number[]; lines: Line[] }) {
  const rows = times
    .map((time, i) => ({ time, i }))
    .reverse()
    .slice(0, MOST_ROWS);
  return (
    <div class="numbers" tabIndex={0}>
      <table>
        <caption class="unseen">{name}, newest first</caption>
        <thead>
          <tr>
            <th scope="col">Time</th>
            {lines.map((l) => (
              <th scope="col" class="n" key={l.label}>
                {l.label}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map(({ time, i }) => (
            <tr key={time}>
              <td>
                <time title={utcTime(time * 1000)}>{dateTime(new Date(time * 1000).toISOString())}</time>
              </td>
              {lines.map((l) => (
                <td class="n" key={l.label}>
                  {quantity(l.values[i], l.unit)}
                  {l.low && l.high && (
                    <small>
                      {quantity(l.low[i], l.unit)} – {quantity(l.high[i], l.unit)}
                    </small>
                  )}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {times.length > MOST_ROWS && (
        <p class="dim small">
          Newest {MOST_ROWS} of {times.length} rows. Export CSV for all.
        </p>
      )}
    </div>
  );
}
function toCsv(times: number[], lines: Line[]): string {
  const bounds = lines.flatMap((l) =>
    l.low && l.high
      ? [
          { name: `${l.label} low`, of: l.low },
          { name: `${l.label} high`, of: l.high },
        ]
      : [],
  );
  return csv(
    [
      { title: "time_utc", value: (i: number) => new Date(times[i] * 1000).toISOString() },
      ...lines.map((l) => ({ title: `${l.label} [${l.unit}]`, value: (i: number) => l.values[i] })),
      ...bounds.map((e) => ({ title: e.name, value: (i: number) => e.of[i] })),
    ],
    times.map((_, i) => i),
  );
}
