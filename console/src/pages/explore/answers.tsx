// Query results as a chart, a table or JSON.

import { useMemo } from "preact/hooks";
import { Chart } from "../../components/chart";
import { Empty, Panel, Problem } from "../../components/parts";
import { type Column, Table } from "../../components/table";
import { count, countAtLeast, plural } from "../../lib/format";
import { type Line, TONES } from "../../lib/lines";
import { setParams } from "../../lib/router";
import { now } from "../../lib/store";
import {
  formatValue,
  isSeries,
  isTruncated,
  type Labels,
  labelNames,
  MAX_SERIES,
  makeSeriesNamer,
  newestValue,
  type QueryResult,
  type Result,
  sortByName,
} from "./queries";

const MAX_JSON = 120_000;
const TITLES: Record<string, string> = { chart: "Chart", table: "Table", json: "Raw JSON" };
type Answer = Result & { q: number; expr: string };

/** One row per series; a scalar or string result is one row of the table. */
function toRows(results: QueryResult[], view: string): Answer[] {
  return results.flatMap(({ reply, expr }, q) => {
    if (isSeries(reply)) return reply.data.result.map((r) => ({ q, expr, ...r }));
    if (!reply || view !== "table") return [];
    return [{ q, expr, metric: {}, value: reply.data.result as unknown as [number, string] }];
  });
}

export function Answers({
  results,
  view,
  time,
  theme,
  address,
}: {
  results: QueryResult[];
  view: string;
  time: { start: number; end: number; step: number };
  theme: string;
  address: URL;
}) {
  const notices = [...new Set(results.flatMap((f) => [...(f.reply?.warnings ?? []), ...(f.reply?.infos ?? [])]))];
  const rows = toRows(results, view);
  const name = makeSeriesNamer(rows.map((r) => r.metric));
  const failures = results.filter((f) => f.problem && !/\d+:\d+: /.test(f.problem.message));
  if (!rows.length && !failures.length && view !== "json" && results.some((f) => f.problem)) return null;
  return (
    <Panel
      id="answers"
      title={TITLES[view] ?? TITLES.chart}
      hint={
        rows.length > MAX_SERIES && view === "chart"
          ? `first ${MAX_SERIES} of ${countAtLeast(rows.length, isTruncated(results))} series; more in the table`
          : isTruncated(results)
            ? `first ${plural(rows.length, "row")}; there are more`
            : notices.join(" · ")
      }
    >
      {failures.map((f) => (
        <Problem key={f.expr}>{f.problem!.message}</Problem>
      ))}
      {view === "json" && <Json results={results} />}
      {view !== "json" && rows.length === 0 && failures.length === 0 && (
        <Empty title="No result">No series matches at this time. Check the metric name and the label matchers.</Empty>
      )}
      {view === "table" && rows.length > 0 && <Values rows={rows} several={results.length > 1} address={address} />}
      {view !== "json" && view !== "table" && rows.length > 0 && (
        <Lines
          rows={sortByName(rows, name).slice(0, MAX_SERIES)}
          several={results.length > 1}
          name={name}
          time={time}
          theme={theme}
        />
      )}
    </Panel>
  );
}

function Values({ rows, several, address }: { rows: Answer[]; several: boolean; address: URL }) {
  const labels = labelNames(rows.map((r) => r.metric));
  const expr: Column<Answer> = {
    id: "expr",
    title: "Expression",
    value: (r) => r.expr,
    cell: (r) => <code>{r.expr}</code>,
  };
  const columns: Column<Answer>[] = [
    ...(several ? [expr] : []),
    ...labels.map((label) => ({
      id: label,
      title: label,
      value: (r: Answer) => r.metric[label] ?? "",
      cell: (r: Answer) => r.metric[label] ?? <span class="dim">–</span>,
    })),
    {
      id: "value",
      title: "Value",
      numeric: true,
      value: (r) => newestValue(r),
      cell: (r) => formatValue(newestValue(r)),
    },
  ];
  return (
    <Table
      id="result"
      caption="Current values"
      address={address}
      rows={rows}
      sort={labels[0] ?? "-value"}
      rowKey={(r) => `${r.q} ${JSON.stringify(r.metric)}`}
      maxRows={100}
      empty={null}
      columns={columns}
    />
  );
}

function Lines({
  rows,
  several,
  name,
  time,
  theme,
}: {
  rows: Answer[];
  several: boolean;
  name: (m: Labels) => string;
  time: { start: number; end: number; step: number };
  theme: string;
}) {
  const { times, lines } = useMemo(() => {
    const times = Array.from(
      { length: Math.floor((time.end - time.start) / time.step) + 1 },
      (_, i) => time.start + i * time.step,
    );
    const newest = now() / 1000;
    const usedLabels = new Set<string>();
    const lines: Line[] = rows.map((r, i) => {
      const points = new Map(r.values?.filter(([at]) => at <= newest).map(([at, text]) => [at, Number(text)]));
      let label = `${name(r.metric) || r.expr}`;
      while (usedLabels.has(label)) label += " ";
      usedLabels.add(label);
      return {
        label,
        unit: "",
        tone: rows.length === 1 ? "accent" : TONES[(several && rows.length > TONES.length ? r.q : i) % TONES.length],
        dashed: !several && i % (2 * TONES.length) >= TONES.length,
        values: times.map((at) => {
          const v = points.get(at);
          return v === undefined || !Number.isFinite(v) ? null : v;
        }),
      };
    });
    return { times, lines };
  }, [rows, time.start, time.end, time.step]);
  return (
    <Chart
      id="explore-chart"
      name={rows[0]?.expr ?? "answer"}
      times={times}
      lines={lines}
      start={time.start}
      end={time.end}
      theme={theme}
      height={340}
      zoom={(from, to) => setParams({ from: String(Math.floor(from)), to: String(Math.ceil(to)), range: null })}
    />
  );
}

function Json({ results }: { results: QueryResult[] }) {
  const text = JSON.stringify(
    results.length === 1
      ? (results[0].reply ?? { error: results[0].problem?.message })
      : results.map((f) => f.reply ?? { error: f.problem?.message }),
    null,
    2,
  );
  return (
    <>
      <pre class="json" tabIndex={0} data-testid="json">
        {text.slice(0, MAX_JSON)}
      </pre>
      {text.length > MAX_JSON && (
        <p class="dim small">
          First {count(MAX_JSON / 1000)} of {count(text.length / 1000)} kB.
        </p>
      )}
    </>
  );
}
