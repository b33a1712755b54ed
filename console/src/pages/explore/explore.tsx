// Explore: PromQL with completion, several expressions on one chart, the same as a table or JSON, and all of it in the
// address.

import { useMemo, useState } from "preact/hooks";
import examples from "../../../../watchkeeper/packs/console/explore.json";
import { Choice, Panel, Select, Skeleton } from "../../components/parts";
import { PromqlField } from "../../components/promql_field";
import { count } from "../../lib/format";
import { TONES } from "../../lib/lines";
import { go, type PageProps, param, put, putAll } from "../../lib/router";
import { get, set, useReturns } from "../../lib/store";
import "../../styles/pages.css";
import { Answers } from "./answers";
import { type Found, isSeries, readTime, SPANS, useQueries } from "./queries";

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

const MOST_QUERIES = 6;

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
      set({ notice: "Link copied, with a fixed time range" });
    } catch {
      go(link.pathname + link.search);
      set({ notice: "Copying failed. Copy the link from the address bar: it has a fixed time range." });
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
                ...(time.fixed ? [["", "custom"] as const] : []),
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
            <button
              type="button"
              data-testid="share"
              onClick={share}
              title="Copy a link to this view with a fixed time range"
            >
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
        running…
      </span>
    );
  const took = Math.max(0, ...found.map((f) => f.millis));
  const spent = found.map((f) => f.reply?.data.stats?.timings.evalTotalTime ?? 0).reduce((a, b) => a + b, 0);
  const series = found.reduce(
    (sum, f) => sum + (isSeries(f.reply) ? f.reply.data.result.length : Number(f.reply !== undefined)),
    0,
  );
  return (
    <span class="hint" data-testid="query-time" title={`${(1000 * spent).toFixed(1)} ms in the query engine`}>
      {count(series)} series · {took.toFixed(0)} ms · {count(found.reduce((sum, f) => sum + f.bytes, 0) / 1000)} kB
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
