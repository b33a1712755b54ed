// Explore: PromQL with completion, several expressions on one chart, the same as a table or JSON, and all of it in the address.

import { useEffect, useMemo, useState } from "preact/hooks";
import examples from "../../../watchkeeper/packs/console/explore.json";
import { Chart } from "../components/chart";
import { Choice, Empty, Panel, Problem, Select, Skeleton } from "../components/parts";
import { PromqlField } from "../components/promql_field";
import { Table } from "../components/table";
import { Refused } from "../lib/api";
import { count } from "../lib/format";
import { type Line, TONES } from "../lib/lines";
import { go, type PageProps, param, put, putAll } from "../lib/router";
import { get, now, set, useHub, useReturns } from "../lib/store";
import "../styles/pages.css";

type Labels = Record<string, string>;
interface Result {
  metric: Labels;
  values?: [number, string][];
  value?: [number, string];
}
interface Reply {
  data: { resultType: string; result: Result[] | [number, string]; stats?: { timings: { evalTotalTime: number } } };
  warnings?: string[];
  infos?: string[];
}
interface Found {
  expr: string;
  reply?: Reply;
  problem?: Refused;
  millis: number;
  bytes: number;
}
export const SPANS: Record<string, number> = { "15m": 900, "1h": 3600, "6h": 21600, "1d": 86400, "7d": 604800 };
const VIEWS = [
  ["chart", "Chart"],
  ["table", "Table"],
  ["json", "JSON"],
] as const;
const STEPS = [
  ["", "auto"],
  ["5", "5 s"],
  ["15", "15 s"],
  ["60", "1 min"],
  ["300", "5 min"],
  ["3600", "1 h"],
] as const;
const MOST_SERIES = 60;
const MOST_QUERIES = 6;
const MOST_POINTS = 11000;
const MOST_JSON = 120_000;

/** What the address says: expressions, and the time in seconds. */
function readTime(address: URL): { start: number; end: number; step: number; range: string; fixed: boolean } {
  const from = Number(param(address, "from"));
  const until = Number(param(address, "to"));
  const fixed = from > 0 && until > from;
  const range = param(address, "range", "1h");
  const end = fixed ? until : Math.floor(now() / 5000) * 5;
  const start = fixed ? from : end - (SPANS[range] ?? 3600);
  const least = Math.ceil((end - start) / (MOST_POINTS - 1));
  const wanted = Number(param(address, "step"));
  return { start, end, step: Math.max(1, least, wanted || Math.ceil((end - start) / 240)), range, fixed };
}

async function ask(path: string): Promise<{ reply: Reply; bytes: number }> {
  let answer: Response;
  try {
    answer = await fetch(path);
  } catch {
    throw new Refused(0, "the hub does not answer");
  }
  const text = await answer.text();
  let content: Reply & { error?: string };
  try {
    content = JSON.parse(text);
  } catch {
    throw new Refused(answer.status, `the hub answered ${answer.status}`);
  }
  if (answer.status === 401) set({ signIn: true });
  if (!answer.ok) throw new Refused(answer.status, content.error ?? `the hub answered ${answer.status}`);
  return { reply: content, bytes: text.length };
}

function useQueries(
  exprs: string[],
  view: string,
  time: { start: number; end: number; step: number },
  again: number,
): Found[] | undefined {
  const [found, keep] = useState<{ key: string; list: Found[] }>();
  const ready = useHub().status !== undefined;
  const key = JSON.stringify([exprs, view === "table" ? "now" : "over", time.start, time.end, time.step]);
  useEffect(() => {
    let current = true;
    if (!ready) return;
    const one = async (expr: string): Promise<Found> => {
      const began = performance.now();
      const limits = { limit: String(MOST_SERIES * 4), stats: "1" };
      const path =
        view === "table"
          ? `/api/v1/query?${new URLSearchParams({ query: expr, time: String(time.end), ...limits })}`
          : `/api/v1/query_range?${new URLSearchParams({ query: expr, start: String(time.start), end: String(time.end), step: String(time.step), ...limits })}`;
      try {
        const { reply, bytes } = await ask(path);
        return { expr, reply, bytes, millis: performance.now() - began };
      } catch (problem) {
        return { expr, problem: problem as Refused, bytes: 0, millis: performance.now() - began };
      }
    };
    Promise.all(exprs.filter(Boolean).map(one)).then((list) => current && keep({ key, list }));
    return () => {
      current = false;
    };
  }, [key, again, ready]);
  return found?.key === key ? found.list : undefined;
}

export function ExplorePage({ address, theme }: PageProps) {
  const [asked, ask] = useState(0);
  const [draft, add] = useState(0);
  const again = asked + useReturns();
  const exprs = address.searchParams.getAll("expr");
  const view = param(address, "view", "chart");
  const key = address.search;
  const time = useMemo(() => readTime(address), [key, again, Boolean(get().status)]);
  const found = useQueries(exprs, view, time, again);
  const fields = [...exprs, ...Array(exprs.length === 0 ? 1 : draft).fill("")].slice(0, MOST_QUERIES);
  const keepExprs = (next: string[]) => {
    const wanted = new URLSearchParams(address.search);
    wanted.delete("expr");
    for (const e of next.filter(Boolean)) wanted.append("expr", e);
    add(0);
    go(`/explore${wanted.size ? `?${wanted}` : ""}`, next.join() === exprs.join());
    ask((n) => n + 1);
  };
  const share = async () => {
    const link = new URL(address.href);
    link.searchParams.set("from", String(time.start));
    link.searchParams.set("to", String(time.end));
    link.searchParams.delete("range");
    try {
      await navigator.clipboard.writeText(link.href);
      set({ notice: "Copied: this view with its time, which stays as it is" });
    } catch {
      go(link.pathname + link.search);
      set({ notice: "The address above is this view with its time" });
    }
  };
  return (
    <main class="single stack" data-testid="explore-page">
      <Panel
        title="Explore"
        hint="PromQL over everything this hub keeps · Enter runs, Tab completes, Ctrl Space offers"
        id="explore-panel"
      >
        {fields.map((expr, i) => (
          <div class="query-row" key={i}>
            <span class={`key ${exprs.length > 1 ? TONES[i % TONES.length] : "accent"}`} aria-hidden="true" />
            <PromqlField
              id={`query-${i}`}
              label={`Expression ${i + 1}`}
              value={expr}
              focused={i === fields.length - 1 && !expr}
              problem={found?.find((f) => f.expr === expr)?.problem?.message}
              run={(text) => keepExprs(fields.map((old, at) => (at === i ? text : old)))}
            />
            {fields.length > 1 && (
              <button
                type="button"
                aria-label={`Remove expression ${i + 1}`}
                onClick={() => keepExprs(fields.filter((_, at) => at !== i))}
              >
                ✕
              </button>
            )}
          </div>
        ))}
        <div class="explore-bar">
          <button
            type="button"
            class="primary"
            data-testid="run"
            onClick={() =>
              keepExprs(
                fields.map((_, i) => (document.getElementById(`query-${i}`) as HTMLTextAreaElement).value.trim()),
              )
            }
          >
            Run
          </button>
          {exprs.length > 0 && exprs.length < MOST_QUERIES && (
            <button type="button" data-testid="add-query" onClick={() => add(1)}>
              Add expression
            </button>
          )}
          <Choice
            label="view"
            id="explore-view"
            options={VIEWS}
            value={view}
            choose={(v) => put("view", v === "chart" ? null : v)}
          />
          <label class="chip">
            {time.fixed ? "fixed time" : "last"}{" "}
            <Select
              label="time range"
              id="explore-range"
              options={[
                ...(time.fixed ? [["", "as chosen"] as const] : []),
                ...Object.keys(SPANS).map((s) => [s, s] as const),
              ]}
              value={time.fixed ? "" : time.range}
              choose={(r) => putAll({ range: r === "1h" ? null : r, from: null, to: null })}
            />
          </label>
          <label class="chip">
            step{" "}
            <Select
              label="step"
              id="explore-step"
              options={STEPS.map(([v, t]) => [v, v ? t : `auto, ${time.step} s`] as const)}
              value={param(address, "step")}
              choose={(s) => put("step", s || null)}
            />
          </label>
          {exprs.length > 0 && (
            <button type="button" data-testid="share" onClick={share} title="Copy a link to this view with its time">
              Share
            </button>
          )}
          <Cost found={found} asked={exprs.length} />
        </div>
      </Panel>
      {exprs.length === 0 ? (
        <Examples keep={(e) => keepExprs([e])} />
      ) : !found ? (
        <Panel>
          <Skeleton height={240} />
        </Panel>
      ) : (
        <Answers found={found} view={view} time={time} theme={theme} address={address} />
      )}
    </main>
  );
}

function Cost({ found, asked }: { found?: Found[]; asked: number }) {
  if (!asked) return null;
  if (!found)
    return (
      <span class="hint" data-testid="query-time">
        asking…
      </span>
    );
  const took = Math.max(0, ...found.map((f) => f.millis));
  const spent = found.map((f) => f.reply?.data.stats?.timings.evalTotalTime ?? 0).reduce((a, b) => a + b, 0);
  const series = found.reduce(
    (sum, f) => sum + (isSeries(f.reply) ? f.reply.data.result.length : Number(f.reply !== undefined)),
    0,
  );
  return (
    <span class="hint" data-testid="query-time" title={`${(1000 * spent).toFixed(1)} ms in the engine`}>
      {count(series)} series · {took.toFixed(0)} ms · {count(found.reduce((sum, f) => sum + f.bytes, 0) / 1000)} kB
    </span>
  );
}

function Examples({ keep }: { keep: (expr: string) => void }) {
  return (
    <Panel title="To begin with" id="examples">
      <ul class="examples">
        {examples.map(({ label, expr }) => (
          <li key={expr}>
            <button type="button" class="plain" onClick={() => keep(expr)}>
              {label}
              <code>{expr}</code>
            </button>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

const isSeries = (reply?: Reply): reply is Reply & { data: { result: Result[] } } =>
  reply !== undefined && ["matrix", "vector"].includes(reply.data.resultType);
function Answers({
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

/** An engine answers in any order; by name, a line has the same colour each time. */
const inOrder = <T extends { q: number; metric: Labels }>(rows: T[], name: (m: Labels) => string) =>
  rows
    .map((row) => [row, name(row.metric)] as const)
    .sort(([a, x], [b, y]) => a.q - b.q || x.localeCompare(y, "en", { numeric: true }))
    .map(([row]) => row);

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

/** A range of samples, as `up[5m]` answers with, is told by its last. */
const newest = (r: { value?: [number, string]; values?: [number, string][] }) =>
  Number((r.value ?? r.values?.at(-1))?.[1]);
const value = (n: number) =>
  Number.isNaN(n) ? "NaN" : Number.isInteger(n) ? n.toLocaleString("en") : String(Number(n.toPrecision(6)));
/** Labels that tell series apart; what all share says nothing. */
function labelNames(all: Labels[]): string[] {
  const names = [...new Set(all.flatMap((m) => Object.keys(m)))];
  const told = names.filter((n) => all.length === 1 || new Set(all.map((m) => m[n])).size > 1);
  const first = ["__name__", "cluster", "Hostname", "node", "gpu", "namespace", "pod", "team"];
  return told
    .sort((a, b) => (first.indexOf(a) + 1 || 99) - (first.indexOf(b) + 1 || 99) || a.localeCompare(b))
    .slice(0, 12);
}
function namer(all: Labels[]): (m: Labels) => string {
  const names = labelNames(all).slice(0, 4);
  return (m) =>
    names
      .filter((n) => m[n])
      .map((n) => (n === "__name__" ? m[n] : names.length > 1 ? `${n} ${m[n]}` : m[n]))
      .join(" · ") ||
    m.__name__ ||
    "";
}
