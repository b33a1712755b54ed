// Replay of a rule, unchanged or edited, on stored samples.

import { useEffect, useState } from "preact/hooks";
import { Chip, Choice, Mark, Panel, Problem, Skeleton, Time } from "../../components/parts";
import { PromqlField } from "../../components/promql_field";
import { type Column, Table } from "../../components/table";
import { ask, type Refused } from "../../lib/api";
import { promqlDuration } from "../../lib/durations";
import { ago, count, day, many } from "../../lib/format";
import { param, put, putAll, to } from "../../lib/router";
import { now, useHub } from "../../lib/store";
import { type Episode, type Replay, type Rule, short } from "./rule_labels";

const SPANS = [
  ["1h", "1 h"],
  ["6h", "6 h"],
  ["1d", "1 day"],
  ["7d", "1 week"],
] as const;

const SECONDS: Record<string, number> = { "1h": 3600, "6h": 21600, "1d": 86400, "7d": 604800 };

/** Replay of a rule, unchanged or edited; it writes nothing and sends no notification. */
export function ReplayRule({ rule, address }: { rule?: Rule; address: URL; theme: string }) {
  const expr = param(address, "expr") || rule?.expr.trim() || "";
  const after = param(address, "for") || promqlDuration(rule?.for_seconds ?? 0);
  const range = param(address, "over", "6h");
  const [found, show] = useState<Replay | null>(null);
  const [problem, say] = useState<Refused>();
  const [busy, work] = useState(false);
  const ready = useHub().status !== undefined;
  useEffect(() => {
    let current = true;
    if (!expr || !ready) return;
    work(true);
    const to = Math.floor(now() / 1000);
    const from = to - SECONDS[range];
    const interval = range === "7d" ? "60s" : range === "1d" ? "30s" : "15s";
    ask<Replay>("/api/rules/replay", "POST", {
      name: rule?.name ?? "Replayed",
      expr,
      for: after,
      from: String(from),
      to: String(to),
      interval,
    })
      .then(
        (answer) => {
          if (current) {
            show(answer);
            say(undefined);
          }
        },
        (error) => {
          if (current) {
            say(error);
            show(null);
          }
        },
      )
      .finally(() => current && work(false));
    return () => {
      current = false;
    };
  }, [expr, after, range, ready]);
  const changed = rule && (expr !== rule.expr.trim() || after !== promqlDuration(rule.for_seconds));
  return (
    <Panel
      title={rule ? `Replay ${rule.name}` : "Replay an expression"}
      id="rehearse-panel"
      hint="on stored samples · writes nothing, sends no notification"
      side={
        <button
          type="button"
          aria-label="Close the replay"
          data-testid="replay-close"
          onClick={() => putAll({ rule: null, expr: null, for: null })}
        >
          ✕
        </button>
      }
    >
      <PromqlField
        id="rule-expr"
        label="Expression of the rule"
        value={expr}
        problem={
          problem && /\d+:\d+: /.test(problem.message)
            ? problem.message.replace(/^[\s\S]*?(\d+:\d+: )/, "$1")
            : undefined
        }
        run={(text) => put("expr", text === rule?.expr.trim() ? null : text)}
      />
      <form
        class="whatif"
        onSubmit={(e) => {
          e.preventDefault();
          put("for", String(new FormData(e.currentTarget).get("for")) || null);
        }}
      >
        <label>
          for{" "}
          <input
            name="for"
            class="number"
            defaultValue={after}
            key={after}
            aria-label="for: how long the condition must be true"
            data-testid="rule-for"
            onChange={(e) => put("for", e.currentTarget.value || null)}
          />
        </label>
        <Choice
          label="over the last"
          id="over"
          options={SPANS}
          value={range}
          choose={(r) => put("over", r === "6h" ? null : r)}
        />
        {changed && (
          <button type="button" onClick={() => putAll({ expr: null, for: null })}>
            Undo changes
          </button>
        )}
        {rule && (
          <Chip title="file">
            {rule.file}:{rule.line}
          </Chip>
        )}
        <a href={to.explore(expr)}>Explore</a>
      </form>
      {problem && !/\d+:\d+: /.test(problem.message) && <Problem>{problem.message}</Problem>}
      {busy && !found ? (
        <Skeleton lines={3} />
      ) : (
        found && (
          <div data-testid="replay-found" aria-busy={busy}>
            <p class="answer">
              {found.failures.length ? (
                <Mark tone="critical">Evaluation failed: {found.failures[0].problem}</Mark>
              ) : found.fired + found.waited === 0 ? (
                <Mark tone="ok">
                  The rule would not have fired in the last {SPANS.find(([s]) => s === range)?.[1]}.
                </Mark>
              ) : (
                <>
                  {many(found.fired, "alert")} would have fired{changed ? ", with this change" : ""},{" "}
                  {count(found.waited)} stayed pending.
                </>
              )}
            </p>
            {found.episodes.length > 0 && <Timeline found={found} />}
            <p class="dim small">
              {count(found.steps)} evaluations from {day(found.since)} to {day(found.until)}
              {found.fired + found.waited > found.episodes.length
                ? `; first ${count(found.episodes.length)} shown`
                : ""}
              .
            </p>
          </div>
        )
      )}
    </Panel>
  );
}

function Timeline({ found }: { found: Replay }) {
  const start = Date.parse(found.since);
  const reach = Date.parse(found.until) - start;
  const end = start + reach;
  const until = (time: string | null) => (time ? Date.parse(time) : end);
  const at = (time: string | null) => `${(100 * Math.max(0, Math.min(reach, until(time) - start))) / reach}%`;
  const width = (from: string, to: string | null) =>
    `${Math.max(0.4, (100 * (until(to) - Math.max(start, Date.parse(from)))) / reach)}%`;
  const lasted = (e: Episode) => until(e.ended_at) - Date.parse(e.fired_at ?? e.active_at);
  const columns: Column<Episode>[] = [
    { id: "where", title: "Series", value: (e) => short(e.labels) || e.alert, cell: (e) => short(e.labels) || e.alert },
    {
      id: "line",
      title: "Time",
      value: (e) => e.fired_at ?? e.active_at,
      class: "timeline",
      cell: (e) => (
        <div class="episode" role="img" aria-label={tell(e)}>
          <i class="wait" style={{ left: at(e.active_at), width: width(e.active_at, e.fired_at ?? e.ended_at) }} />
          {e.fired_at && <i class="fire" style={{ left: at(e.fired_at), width: width(e.fired_at, e.ended_at) }} />}
        </div>
      ),
    },
    {
      id: "fired",
      title: "Fired at",
      value: (e) => e.fired_at,
      cell: (e) => (e.fired_at ? <Time at={e.fired_at} full /> : <span class="dim">never</span>),
    },
    {
      id: "lasts",
      title: "Duration",
      numeric: true,
      value: lasted,
      cell: (e) => `${e.ended_at ? "" : "≥ "}${ago(lasted(e))}`,
    },
    {
      id: "value",
      title: "Value",
      numeric: true,
      minor: true,
      value: (e) => e.value,
      cell: (e) => String(Number(e.value.toPrecision(4))),
    },
  ];
  return (
    <>
      <Table
        id="episodes"
        caption="Alerts that would have fired"
        rows={found.episodes}
        rowKey={(e) => JSON.stringify([e.labels, e.active_at])}
        rowTestId="episode"
        most={20}
        columns={columns}
        empty={null}
      />
      <p class="keys-row">
        <span>
          <i class="hatch" aria-hidden="true" />
          pending
        </span>
        <span>
          <i class="warn" aria-hidden="true" />
          firing
        </span>
      </p>
    </>
  );
}

function tell({ fired_at, ended_at }: Episode): string {
  const fires = fired_at ? `fired at ${day(fired_at)}` : "pending, did not fire";
  return `${fires}, ${ended_at ? `resolved at ${day(ended_at)}` : "not resolved at the end"}`;
}
