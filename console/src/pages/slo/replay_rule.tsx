// Replay of a rule, unchanged or edited, on stored samples.

import { useEffect, useState } from "preact/hooks";
import { Chip, Choice, MarkedText, Panel, Problem, Skeleton, Time } from "../../components/parts";
import { PromqlField } from "../../components/promql_field";
import { type Column, Table } from "../../components/table";
import { type RequestError, request } from "../../lib/api";
import { promqlDuration } from "../../lib/durations";
import { count, dateTime, plural, shortDuration } from "../../lib/format";
import { param, setParam, setParams, to } from "../../lib/router";
import { now, useHub } from "../../lib/store";
import { type Episode, type Replay, type Rule, shortLabels } from "./rule_labels";

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
  const holdFor = param(address, "for") || promqlDuration(rule?.for_seconds ?? 0);
  const range = param(address, "over", "6h");
  const [replay, setReplay] = useState<Replay | null>(null);
  const [problem, setProblem] = useState<RequestError>();
  const [isRunning, setRunning] = useState(false);
  const ready = useHub().status !== undefined;
  useEffect(() => {
    let current = true;
    if (!expr || !ready) return;
    setRunning(true);
    const to = Math.floor(now() / 1000);
    const from = to - SECONDS[range];
    const interval = range === "7d" ? "60s" : range === "1d" ? "30s" : "15s";
    request<Replay>("/api/rules/replay", "POST", {
      name: rule?.name ?? "Replayed",
      expr,
      for: holdFor,
      from: String(from),
      to: String(to),
      interval,
    })
      .then(
        (answer) => {
          if (current) {
            setReplay(answer);
            setProblem(undefined);
          }
        },
        (error) => {
          if (current) {
            setProblem(error);
            setReplay(null);
          }
        },
      )
      .finally(() => current && setRunning(false));
    return () => {
      current = false;
    };
  }, [expr, holdFor, range, ready]);
  const isChanged = rule && (expr !== rule.expr.trim() || holdFor !== promqlDuration(rule.for_seconds));
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
          onClick={() => setParams({ rule: null, expr: null, for: null })}
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
        run={(text) => setParam("expr", text === rule?.expr.trim() ? null : text)}
      />
      <form
        class="whatif"
        onSubmit={(e) => {
          e.preventDefault();
          setParam("for", String(new FormData(e.currentTarget).get("for")) || null);
        }}
      >
        <label>
          for{" "}
          <input
            name="for"
            class="number"
            defaultValue={holdFor}
            key={holdFor}
            aria-label="for: how long the condition must be true"
            data-testid="rule-for"
            onChange={(e) => setParam("for", e.currentTarget.value || null)}
          />
        </label>
        <Choice
          label="over the last"
          id="over"
          options={SPANS}
          value={range}
          choose={(r) => setParam("over", r === "6h" ? null : r)}
        />
        {isChanged && (
          <button type="button" onClick={() => setParams({ expr: null, for: null })}>
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
      {isRunning && !replay ? (
        <Skeleton lines={3} />
      ) : (
        replay && (
          <div data-testid="replay-found" aria-busy={isRunning}>
            <p class="answer">
              {replay.failures.length ? (
                <MarkedText tone="critical">Evaluation failed: {replay.failures[0].problem}</MarkedText>
              ) : replay.fired + replay.waited === 0 ? (
                <MarkedText tone="ok">
                  The rule would not have fired in the last {SPANS.find(([s]) => s === range)?.[1]}.
                </MarkedText>
              ) : (
                <>
                  {plural(replay.fired, "alert")} would have fired{isChanged ? ", with this change" : ""},{" "}
                  {count(replay.waited)} stayed pending.
                </>
              )}
            </p>
            {replay.episodes.length > 0 && <EpisodeTable replay={replay} />}
            <p class="dim small">
              {count(replay.steps)} evaluations from {dateTime(replay.since)} to {dateTime(replay.until)}
              {replay.fired + replay.waited > replay.episodes.length
                ? `; first ${count(replay.episodes.length)} shown`
                : ""}
              .
            </p>
          </div>
        )
      )}
    </Panel>
  );
}

function EpisodeTable({ replay }: { replay: Replay }) {
  const start = Date.parse(replay.since);
  const span = Date.parse(replay.until) - start;
  const end = start + span;
  const until = (time: string | null) => (time ? Date.parse(time) : end);
  const leftOf = (time: string | null) => `${(100 * Math.max(0, Math.min(span, until(time) - start))) / span}%`;
  const width = (from: string, to: string | null) =>
    `${Math.max(0.4, (100 * (until(to) - Math.max(start, Date.parse(from)))) / span)}%`;
  const lasted = (e: Episode) => until(e.ended_at) - Date.parse(e.fired_at ?? e.active_at);
  const columns: Column<Episode>[] = [
    {
      id: "where",
      title: "Series",
      value: (e) => shortLabels(e.labels) || e.alert,
      cell: (e) => shortLabels(e.labels) || e.alert,
    },
    {
      id: "line",
      title: "Time",
      value: (e) => e.fired_at ?? e.active_at,
      class: "timeline",
      cell: (e) => (
        <div class="episode" role="img" aria-label={describeEpisode(e)}>
          <i class="wait" style={{ left: leftOf(e.active_at), width: width(e.active_at, e.fired_at ?? e.ended_at) }} />
          {e.fired_at && <i class="fire" style={{ left: leftOf(e.fired_at), width: width(e.fired_at, e.ended_at) }} />}
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
      cell: (e) => `${e.ended_at ? "" : "≥ "}${shortDuration(lasted(e))}`,
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
        rows={replay.episodes}
        rowKey={(e) => JSON.stringify([e.labels, e.active_at])}
        rowTestId="episode"
        maxRows={20}
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

function describeEpisode({ fired_at, ended_at }: Episode): string {
  const firedText = fired_at ? `fired at ${dateTime(fired_at)}` : "pending, did not fire";
  return `${firedText}, ${ended_at ? `resolved at ${dateTime(ended_at)}` : "not resolved at the end"}`;
}
