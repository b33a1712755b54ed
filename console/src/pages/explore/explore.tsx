// Explore: several PromQL expressions as a chart, a table or JSON; the URL holds the whole view.

import { useMemo, useState } from "preact/hooks";
import examples from "../../../../watchkeeper/packs/console/explore.json";
import { Choice, Panel, Select, Skeleton } from "../../components/parts";
import { PromqlField } from "../../components/promql_field";
import { count } from "../../lib/format";
import { TONES } from "../../lib/lines";
import { navigate, type PageProps, param, setParam, setParams } from "../../lib/router";
import { getState, setState, useReconnects } from "../../lib/store";
import "../../styles/pages.css";
import { Answers } from "./answers";
import { isSeries, type QueryResult, readTime, SPANS, useQueries } from "./queries";

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

const MAX_QUERIES = 6;

export function ExplorePage({ address, theme }: PageProps) {
  const [runCount, setRunCount] = useState(0);
  const [draftCount, setDraftCount] = useState(0);
  const version = runCount + useReconnects();
  const exprs = address.searchParams.getAll("expr");
  const view = param(address, "view", "chart");
  const key = address.search;
  const time = useMemo(() => readTime(address), [key, version, Boolean(getState().status)]);
  const results = useQueries(exprs, view, time, version);
  const fields = [...exprs, ...Array(exprs.length === 0 ? 1 : draftCount).fill("")].slice(0, MAX_QUERIES);
  const showExprs = (next: string[]) => {
    const params = new URLSearchParams(address.search);
    params.delete("expr");
    for (const e of next.filter(Boolean)) params.append("expr", e);
    setDraftCount(0);
    navigate(`/explore${params.size ? `?${params}` : ""}`, next.join() === exprs.join());
    setRunCount((n) => n + 1);
  };
  const share = async () => {
    const link = new URL(address.href);
    link.searchParams.set("from", String(time.start));
    link.searchParams.set("to", String(time.end));
    link.searchParams.delete("range");
    try {
      await navigator.clipboard.writeText(link.href);
      setState({ notice: "Link copied, with a fixed time range" });
    } catch {
      navigate(link.pathname + link.search);
      setState({ notice: "Copying failed. Copy the link from the address bar: it has a fixed time range." });
    }
  };
  return (
    <main class="single stack" data-testid="explore-page">
      <Panel
        title="Explore"
        hint="PromQL on all samples of this hub · Enter runs, Tab completes, Ctrl-Space suggests"
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
              problem={results?.find((f) => f.expr === expr)?.problem?.message}
              run={(text) => showExprs(fields.map((old, at) => (at === i ? text : old)))}
            />
            {fields.length > 1 && (
              <button
                type="button"
                aria-label={`Remove expression ${i + 1}`}
                onClick={() => showExprs(fields.filter((_, at) => at !== i))}
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
              showExprs(
                fields.map((_, i) => (document.getElementById(`query-${i}`) as HTMLTextAreaElement).value.trim()),
              )
            }
          >
            Run
          </button>
          {exprs.length > 0 && exprs.length < MAX_QUERIES && (
            <button type="button" data-testid="add-query" onClick={() => setDraftCount(1)}>
              Add expression
            </button>
          )}
          <Choice
            label="view"
            id="explore-view"
            options={VIEWS}
            value={view}
            choose={(v) => setParam("view", v === "chart" ? null : v)}
          />
          <label class="chip">
            {time.fixed ? "fixed time" : "last"}{" "}
            <Select
              label="time range"
              id="explore-range"
              options={[
                ...(time.fixed ? [["", "custom"] as const] : []),
                ...Object.keys(SPANS).map((s) => [s, s] as const),
              ]}
              value={time.fixed ? "" : time.range}
              choose={(r) => setParams({ range: r === "1h" ? null : r, from: null, to: null })}
            />
          </label>
          <label class="chip">
            step{" "}
            <Select
              label="step"
              id="explore-step"
              options={STEPS.map(([v, t]) => [v, v ? t : `auto, ${time.step} s`] as const)}
              value={param(address, "step")}
              choose={(s) => setParam("step", s || null)}
            />
          </label>
          {exprs.length > 0 && (
            <button
              type="button"
              data-testid="share"
              onClick={share}
              title="Copy a link to this view with a fixed time range"
            >
              Share
            </button>
          )}
          <QueryCost results={results} expressionCount={exprs.length} />
        </div>
      </Panel>
      {exprs.length === 0 ? (
        <Examples keep={(e) => showExprs([e])} />
      ) : !results ? (
        <Panel>
          <Skeleton height={240} />
        </Panel>
      ) : (
        <Answers results={results} view={view} time={time} theme={theme} address={address} />
      )}
    </main>
  );
}

function QueryCost({ results, expressionCount }: { results?: QueryResult[]; expressionCount: number }) {
  if (!expressionCount) return null;
  if (!results)
    return (
      <span class="hint" data-testid="query-time">
        running…
      </span>
    );
  const slowestMs = Math.max(0, ...results.map((f) => f.millis));
  const engineSeconds = results.map((f) => f.reply?.data.stats?.timings.evalTotalTime ?? 0).reduce((a, b) => a + b, 0);
  const series = results.reduce(
    (sum, f) => sum + (isSeries(f.reply) ? f.reply.data.result.length : Number(f.reply !== undefined)),
    0,
  );
  const bytes = results.reduce((sum, f) => sum + f.bytes, 0);
  return (
    <span class="hint" data-testid="query-time" title={`${(1000 * engineSeconds).toFixed(1)} ms in the query engine`}>
      {count(series)} series · {slowestMs.toFixed(0)} ms · {count(bytes / 1000)} kB
    </span>
  );
}

function Examples({ keep }: { keep: (expr: string) => void }) {
  return (
    <Panel title="Examples" id="examples">
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
