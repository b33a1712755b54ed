// Answers as a chart, a table or JSON.

import { useMemo } from "preact/hooks";
import { Chart } from "../../components/chart";
import { Empty, Panel, Problem } from "../../components/parts";
import { Table } from "../../components/table";
import { count } from "../../lib/format";
import { type Line, TONES } from "../../lib/lines";
import { putAll } from "../../lib/router";
import { now } from "../../lib/store";
import { type Found, inOrder, isSeries, type Labels, labelNames, MOST_SERIES, namer, newest, value } from "./queries";

const MOST_JSON = 120_000;

export function Answers({
  found,
  view,
  time,
  theme,
  address,
}: {
  found: Found[];
  view: string;
  time: { start: number; end: number; step: number };
  theme: string;
  address: URL;
}) {
  const said = [...new Set(found.flatMap((f) => [...(f.reply?.warnings ?? []), ...(f.reply?.infos ?? [])]))];
  const rows = found.flatMap((f, q) =>
    isSeries(f.reply)
      ? f.reply.data.result.map((r) => ({ q, expr: f.expr, ...r }))
      : f.reply && view === "table"
        ? [{ q, expr: f.expr, metric: {}, value: f.reply.data.result as unknown as [number, string] }]
        : [],
  );
  const name = namer(rows.map((r) => r.metric));
  const wrong = found.filter((f) => f.problem && !/\d+:\d+: /.test(f.problem.message));
  if (!rows.length && !wrong.length && view !== "json" && found.some((f) => f.problem)) return null;
  return (
    <Panel
      id="answers"
      title={view === "table" ? "Now" : view === "json" ? "As the API answers" : "Over time"}
      hint={
        rows.length > MOST_SERIES && view === "chart"
          ? `the first ${MOST_SERIES} of ${count(rows.length)} series; the table has more`
          : said.length
            ? said.join(" · ")
            : undefined
      }
    >
      {wrong.map((f) => (
        <Problem key={f.expr}>{f.problem!.message}</Problem>
      ))}
      {view === "json" ? (
        <Json found={found} />
      ) : rows.length === 0 ? (
        wrong.length ? null : (
          <Empty title="Nothing answers">
            No series has a sample here at this time. A metric may have another name, or labels may not fit together.
          </Empty>
        )
      ) : view === "table" ? (
        <Table
          id="result"
          caption="Values now"
          address={address}
          rows={rows}
          sort={labelNames(rows.map((r) => r.metric))[0] ?? "-value"}
          rowKey={(r) => `${r.q} ${JSON.stringify(r.metric)}`}
          most={100}
          empty={null}
          columns={[
            ...(found.length > 1
              ? [
                  {
                    id: "expr",
                    title: "Expression",
                    value: (r: (typeof rows)[0]) => r.expr,
                    cell: (r: (typeof rows)[0]) => <code>{r.expr}</code>,
                  },
                ]
              : []),
            ...labelNames(rows.map((r) => r.metric)).map((label) => ({
              id: label,
              title: label,
              value: (r: (typeof rows)[0]) => r.metric[label] ?? "",
              cell: (r: (typeof rows)[0]) => r.metric[label] ?? <span class="dim">–</span>,
            })),
            { id: "value", title: "Value", numeric: true, value: (r) => newest(r), cell: (r) => value(newest(r)) },
          ]}
        />
      ) : (
        <Lines
          rows={inOrder(rows, name).slice(0, MOST_SERIES)}
          several={found.length > 1}
          name={name}
          time={time}
          theme={theme}
        />
      )}
    </Panel>
  );
}

function Lines({
  rows,
  several,
  name,
  time,
  theme,
}: {
  rows: { q: number; expr: string; metric: Labels; values?: [number, string][] }[];
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
    const seen = new Set<string>();
    const lines: Line[] = rows.map((r, i) => {
      const points = new Map(r.values?.filter(([at]) => at <= newest).map(([at, text]) => [at, Number(text)]));
      let label = `${name(r.metric) || r.expr}`;
      while (seen.has(label)) label += " ";
      seen.add(label);
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
      zoom={(from, to) => putAll({ from: String(Math.floor(from)), to: String(Math.ceil(to)), range: null })}
    />
  );
}

function Json({ found }: { found: Found[] }) {
  const text = JSON.stringify(
    found.length === 1
      ? (found[0].reply ?? { error: found[0].problem?.message })
      : found.map((f) => f.reply ?? { error: f.problem?.message }),
    null,
    2,
  );
  return (
    <>
      <pre class="json" tabIndex={0} data-testid="json">
        {text.slice(0, MOST_JSON)}
      </pre>
      {text.length > MOST_JSON && (
        <p class="dim small">
          The first {count(MOST_JSON / 1000)} of {count(text.length / 1000)} kB.
        </p>
      )}
    </>
  );
}
