// A chart of lines over time: bands below each other or one scale, a crosshair shared by the page, and the same as
// numbers.

import { useEffect, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import { clock, day, quantity, utc } from "../lib/format";
import type { Line, Mark } from "../lib/lines";
import { put, useAddress } from "../lib/router";
import { now } from "../lib/store";
import { csv, save } from "./table";

interface Props {
  id: string;
  /** What it shows, for readers that see no lines, and for the exported file. */
  name: string;
  /** Seconds since 1970, ascending; all lines have a value or null for each. */
  times: number[] | undefined;
  lines: Line[];
  start?: number;
  end?: number;
  marks?: Mark[];
  theme: string;
  /** Bands have a scale each and stand below each other; otherwise all lines share one scale. */
  bands?: boolean;
  /** Height of one band, or of the whole in one scale. */
  height?: number;
  /** Called with seconds when someone drags over a span. */
  zoom?: (from: number, until: number) => void;
  problem?: string;
}
const AXIS = 26;
const TOP = 28;
const MOST_ROWS = 400;

export function Chart(p: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const sheet = useRef<Props>(p);
  const [library, load] = useState<typeof import("../lib/plot") | null>(null);
  const [shown, show] = useState<number | null>(null);
  const address = useAddress();
  const asNumbers = address.searchParams.get("numbers") === p.id;
  const bands = Boolean(p.bands);
  const each = p.height ?? (bands ? 46 : 220);
  const height = bands ? p.lines.length * each + AXIS + TOP : each;
  sheet.current = p;
  const at = () => {
    const { times = [], lines, marks = [], start, end, zoom } = sheet.current;
    return {
      times,
      lines,
      marks,
      zoom,
      bands,
      height,
      start: start ?? times[0] ?? 0,
      end: end ?? times[times.length - 1] ?? 1,
      point: show,
    };
  };
  useEffect(() => {
    import("../lib/plot").then(load);
  }, []);
  const shape = p.lines.map((l) => `${l.label} ${l.tone} ${Boolean(l.low)}`).join("\n");
  const ready = Boolean(p.times && library);
  useEffect(() => {
    const host = box.current;
    if (!ready || !host || asNumbers) return;
    plot.current = library!.make(host, at);
    const watch = new ResizeObserver(() => plot.current?.setSize({ width: Math.max(60, host.clientWidth), height }));
    watch.observe(host);
    return () => {
      watch.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [ready, asNumbers, p.theme, shape, height, Boolean(p.zoom)]);
  useEffect(() => {
    if (ready && plot.current) plot.current.setData(library!.table(at()));
  }, [p.times, p.lines, p.start, p.end]);
  useEffect(() => plot.current?.redraw(false), [JSON.stringify(p.marks)]);

  const times = p.times ?? [];
  const step = times.length > 1 ? times[1] - times[0] : 15;
  const reading = (line: Line) => {
    const last = line.values.findLastIndex((v) => v != null);
    // A stale reading must not look current.
    const past =
      shown == null && last >= 0 && times[last] < Math.min(p.end ?? Infinity, now() / 1000) - Math.max(60, 3 * step);
    return times.length ? `${past ? "last " : ""}${quantity(line.values[shown ?? last], line.unit)}` : "";
  };
  const moment = shown != null && times[shown] ? times[shown] * 1000 : null;
  return (
    <div
      class={`chart ${bands ? "strips" : "one"}`}
      data-testid={p.id}
      data-ready={ready || (asNumbers && p.times) ? "yes" : "no"}
    >
      {p.problem && (
        <p class="problem" role="alert">
          Loading the chart failed: {p.problem}
        </p>
      )}
      {asNumbers && p.times ? (
        <Numbers name={p.name} times={times} lines={p.lines} />
      ) : (
        <>
          <div class="labels" style={bands ? { paddingTop: `${TOP}px` } : undefined}>
            {p.lines.map((line) => (
              <div key={line.label} style={bands ? { height: `${each}px` } : undefined}>
                <span class={`key ${line.tone ?? "accent"}${line.dashed ? " dashed" : ""}`} />
                {line.group && <small>{line.group}</small>}
                <span class="label" title={line.label}>
                  {line.label}
                </span>
                <b>{reading(line)}</b>
              </div>
            ))}
          </div>
          <div
            class="plot"
            ref={box}
            role="img"
            aria-label={`${p.name}. Use the button below to show the values as a table.`}
            style={{ minHeight: `${height}px` }}
          >
            {!ready && !p.problem && (
              <div class="bone" style={{ height: `${Math.max(20, height - AXIS - (bands ? TOP : 0))}px` }} />
            )}
            {moment && (
              <span class="at" title={utc(moment)}>
                {clock(moment)}
              </span>
            )}
          </div>
        </>
      )}
      <p class="foot-line">
        <button
          type="button"
          class="plain"
          aria-pressed={asNumbers}
          data-testid={`${p.id}-numbers`}
          onClick={() => put("numbers", asNumbers ? null : p.id)}
        >
          {asNumbers ? "Chart" : "Table"}
        </button>
        <button
          type="button"
          class="plain"
          data-export
          data-testid={`${p.id}-csv`}
          title="Export these values as CSV"
          onClick={() => save(`${p.id}.csv`, toCsv(times, p.lines))}
        >
          CSV
        </button>
      </p>
    </div>
  );
}

function Numbers({ name, times, lines }: { name: string; times: number[]; lines: Line[] }) {
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
                <time title={utc(time * 1000)}>{day(new Date(time * 1000).toISOString())}</time>
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
  const ends = lines.flatMap((l) =>
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
      ...ends.map((e) => ({ title: e.name, value: (i: number) => e.of[i] })),
    ],
    times.map((_, i) => i),
  );
}
