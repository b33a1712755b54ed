// Rules: which alerts wait and fire, how each rule is, and what a rule would have fired over history before it is changed.

import { useEffect, useMemo, useState } from "preact/hooks";
import { Chip, Choice, Empty, Level, Mark, Panel, Problem, Skeleton, Tile, Time } from "../components/parts";
import { PromqlField } from "../components/promql_field";
import { type Column, Table } from "../components/table";
import { ask, type Refused, useAsk } from "../lib/api";
import { promqlDuration, wholeUnits } from "../lib/durations";
import { ago, count, day, many, words } from "../lib/format";
import { type PageProps, param, put, putAll, to, withParams } from "../lib/router";
import { now, useHub, usePulse } from "../lib/store";
import type { Severity } from "../types";

/** `id` is the name, with a number where a file has several rules of that name, as burn rates over several windows. */
interface Rule {
  id: string;
  name: string;
  group: string;
  file: string;
  line: number;
  expr: string;
  for_seconds: number;
  keep_firing_seconds: number;
  severity: string;
  cause: string;
  summary: string;
  firing: number;
  pending: number;
  health: string;
  problem: string;
  evaluated_at: string | null;
  seconds: number;
}
interface Alert {
  name: string;
  labels: Record<string, string>;
  state: string;
  active_at: string;
  fired_at: string | null;
  value: number;
  summary: string;
}
interface Rules {
  now: string;
  rules: Omit<Rule, "id">[];
  alerts: Alert[];
  alerts_total: number;
}
interface Episode {
  alert: string;
  labels: Record<string, string>;
  active_at: string;
  fired_at: string | null;
  ended_at: string | null;
  value: number;
}
interface Replay {
  since: string;
  until: string;
  steps: number;
  fired: number;
  waited: number;
  episodes: Episode[];
  failures: { rule: string; problem: string }[];
}
const SPANS = [
  ["1h", "1 h"],
  ["6h", "6 h"],
  ["1d", "1 day"],
  ["7d", "1 week"],
] as const;
const SECONDS: Record<string, number> = { "1h": 3600, "6h": 21600, "1d": 86400, "7d": 604800 };
const stateOf = (r: Rule) =>
  r.firing
    ? "firing"
    : r.pending
      ? "waits"
      : r.health === "err"
        ? "cannot be asked"
        : r.evaluated_at
          ? "quiet"
          : "not asked yet";
const toneOf = (r: Rule) =>
  r.health === "err"
    ? "critical"
    : r.firing
      ? r.severity === "critical"
        ? "critical"
        : "warning"
      : r.pending
        ? "info"
        : r.evaluated_at
          ? "ok"
          : "";
const short = (labels: Record<string, string>) =>
  Object.entries(labels)
    .filter(([k]) => !["alertname", "severity", "cause", "cluster", "job", "instance"].includes(k))
    .map(([k, v]) => `${k} ${v}`)
    .slice(0, 5)
    .join(" · ");

export function RulesView({ address, theme }: PageProps) {
  const { answer, problem } = useAsk<Rules>("/api/rules", usePulse());
  const q = param(address, "q").toLowerCase();
  const only = param(address, "state", "all");
  const name = param(address, "rule");
  const fits = (r: Rule) =>
    (only === "all" || (only === "active" ? r.firing + r.pending > 0 : r.health === "err")) &&
    (!q || `${r.name} ${r.group} ${r.cause} ${r.severity} ${r.expr} ${r.summary}`.toLowerCase().includes(q));
  const rules = useMemo(() => answer && numbered(answer.rules), [answer]);
  const shown = useMemo(() => rules?.filter(fits), [rules, q, only]);
  const chosen = rules?.find((r) => r.id === name);
  return (
    <>
      {answer && <Figures answer={answer} address={address} />}
      {(chosen || param(address, "expr")) && <Rehearse rule={chosen} address={address} theme={theme} key={name} />}
      {answer && answer.alerts.length > 0 && (
        <Panel
          title="Alerts"
          id="alerts-panel"
          hint={`${count(answer.alerts_total)} wait or fire${answer.alerts_total > answer.alerts.length ? `, ${answer.alerts.length} shown` : ""}`}
        >
          <Table
            id="alerts"
            caption="Alerts that wait or fire"
            rows={answer.alerts}
            rowKey={(a) => a.name + JSON.stringify(a.labels)}
            rowTestId="alert-row"
            address={address}
            param="order"
            most={12}
            columns={ALERTS}
            choose={(a) => putAll({ rule: ruleOf(a, rules ?? []), expr: null, for: null })}
            empty={null}
          />
        </Panel>
      )}
      <Panel
        title="Rules"
        id="rules-panel"
        hint={
          shown &&
          answer &&
          `${count(shown.length)}${shown.length < answer.rules.length ? ` of ${count(answer.rules.length)}` : ""} · choose one to replay it`
        }
        side={
          <div class="pick">
            <input
              id="filter"
              class="narrow"
              type="search"
              value={param(address, "q")}
              placeholder="Name, cause or metric"
              aria-label="Only rules with these words"
              data-testid="rules-filter"
              onInput={(e) => put("q", e.currentTarget.value)}
            />
            <Choice
              label="which rules"
              id="rules-state"
              options={[
                ["all", "All"],
                ["active", "Active"],
                ["broken", "Broken"],
              ]}
              value={only}
              choose={(s) => put("state", s === "all" ? null : s)}
            />
          </div>
        }
      >
        <Table
          id="rules"
          caption="Alerting rules"
          rows={shown}
          problem={problem}
          rowKey={(r) => r.id}
          rowTestId="rule-row"
          address={address}
          most={60}
          columns={RULES}
          choose={(r) => putAll({ rule: r.id === name ? null : r.id, expr: null, for: null })}
          chosen={name}
          empty={
            answer?.rules.length ? (
              <Empty title="No rule is like this">Take a word out of the filter.</Empty>
            ) : (
              <Empty title="This hub asks no rules">
                Another server owns them, or this is a recording. A rule can still be tried:{" "}
                <a href={withParams(address, { expr: "up == 0" })}>replay an expression</a>.
              </Empty>
            )
          }
        />
      </Panel>
    </>
  );
}

function numbered(rules: Rules["rules"]): Rule[] {
  const seen = new Map<string, number>();
  return rules.map((r) => {
    const n = (seen.get(r.name) ?? 0) + 1;
    seen.set(r.name, n);
    return { ...r, id: n > 1 ? `${r.name}:${n}` : r.name };
  });
}
/** An alert names its rule; of several with that name, the one that has its severity and is active. */
const ruleOf = (a: Alert, rules: Rule[]) =>
  rules.find((r) => r.name === a.name && r.severity === a.labels.severity && r.firing + r.pending > 0)?.id ?? a.name;

function Figures({ answer, address }: { answer: Rules; address: URL }) {
  const { status } = useHub();
  const firing = answer.rules.filter((r) => r.firing);
  const waits = answer.rules.filter((r) => r.pending && !r.firing);
  const broken = answer.rules.filter((r) => r.health === "err");
  const total = answer.rules.reduce((sum, r) => sum + r.seconds, 0);
  return (
    <section class="tiles even" aria-label="rules in figures">
      <Tile
        id="tile-firing"
        name="Firing"
        value={count(answer.rules.reduce((sum, r) => sum + r.firing, 0))}
        tone={firing.some((r) => r.severity === "critical") ? "bad" : firing.length ? "warn" : undefined}
        meaning={firing.length ? `alerts of ${many(firing.length, "rule")}` : "no rule fires"}
        href={withParams(address, { state: "active" })}
      />
      <Tile
        id="tile-waiting"
        name="Waiting"
        value={count(answer.rules.reduce((sum, r) => sum + r.pending, 0))}
        meaning={waits.length ? `true, not for long enough: ${many(waits.length, "rule")}` : "nothing is on its way"}
      />
      <Tile
        id="tile-rules"
        name="Alerting rules"
        value={count(answer.rules.length)}
        meaning={
          status?.rules.is_successful === false
            ? "the files have problems; the last good ones are in force"
            : "as the files are now"
        }
      />
      <Tile
        id="tile-broken"
        name="Cannot be asked"
        value={count(broken.length)}
        tone={broken.length ? "bad" : undefined}
        meaning={
          broken.length
            ? broken
                .slice(0, 2)
                .map((r) => r.name)
                .join(", ")
            : "every rule got an answer"
        }
        href={withParams(address, { state: "broken" })}
      />
      <Tile
        id="tile-spent"
        name="One round takes"
        value={total < 1 ? `${(1000 * total).toFixed(0)} ms` : `${total.toFixed(1)} s`}
        meaning="of the engine, for all rules"
      />
    </section>
  );
}

const RULES: Column<Rule>[] = [
  {
    id: "name",
    title: "Rule",
    value: (r) => r.name,
    cell: (r) => (
      <>
        <button type="button" class="plain as-is" onClick={() => putAll({ rule: r.id, expr: null, for: null })}>
          {r.name}
        </button>
        <small class="plain">{r.summary.replace(/\{\{[^}]*\}\}/g, "…") || r.group}</small>
      </>
    ),
  },
  {
    id: "state",
    title: "State",
    value: (r) => stateOf(r),
    cell: (r) => (
      <>
        <Mark tone={toneOf(r)}>{stateOf(r)}</Mark>
        {r.firing + r.pending > 0 && (
          <small class="plain">
            {[r.firing && `${count(r.firing)} fire`, r.pending && `${count(r.pending)} wait`]
              .filter(Boolean)
              .join(" · ")}
          </small>
        )}
        {r.problem && <small class="plain">{r.problem}</small>}
      </>
    ),
  },
  {
    id: "severity",
    title: "Severity",
    value: (r) => r.severity,
    cell: (r) =>
      ["critical", "warning", "info"].includes(r.severity) ? (
        <Level severity={r.severity as Severity} />
      ) : (
        r.severity || <span class="dim">none</span>
      ),
  },
  { id: "for", title: "After", numeric: true, value: (r) => r.for_seconds, cell: (r) => wholeUnits(r.for_seconds) },
  {
    id: "cause",
    title: "Points to",
    value: (r) => words(r.cause),
    cell: (r) => (r.cause ? words(r.cause) : <span class="dim">–</span>),
    minor: true,
  },
  {
    id: "cost",
    title: "Takes",
    numeric: true,
    minor: true,
    value: (r) => r.seconds,
    cell: (r) => `${(1000 * r.seconds).toFixed(1)} ms`,
  },
];
const ALERTS: Column<Alert>[] = [
  {
    id: "name",
    title: "Alert",
    value: (a) => a.name,
    cell: (a) => (
      <>
        <b class="strong">{a.name}</b>
        <small class="plain">{a.summary || short(a.labels)}</small>
      </>
    ),
  },
  {
    id: "state",
    title: "State",
    value: (a) => a.state,
    cell: (a) => (
      <Mark tone={a.state === "firing" ? (a.labels.severity === "critical" ? "critical" : "warning") : "info"}>
        {a.state === "firing" ? "fires" : "waits"}
      </Mark>
    ),
  },
  {
    id: "since",
    title: "Since",
    value: (a) => a.active_at,
    cell: (a) => (
      <>
        <Time at={a.active_at} />
        <small class="plain">{ago(now() - Date.parse(a.active_at))}</small>
      </>
    ),
  },
  {
    id: "where",
    title: "Where",
    value: (a) => short(a.labels),
    cell: (a) => short(a.labels) || <span class="dim">everywhere</span>,
    minor: true,
  },
  {
    id: "value",
    title: "Value",
    numeric: true,
    value: (a) => a.value,
    cell: (a) => String(Number(a.value.toPrecision(4))),
  },
];

/** A rule, as it is or changed, over the samples that are kept; nothing is written and nobody is told. */
function Rehearse({ rule, address }: { rule?: Rule; address: URL; theme: string }) {
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
      hint="over the samples that are kept · nothing is written, nobody is told"
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
          fires after{" "}
          <input
            name="for"
            class="number"
            defaultValue={after}
            key={after}
            aria-label="How long it must be true"
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
            As it is in the file
          </button>
        )}
        {rule && (
          <Chip title="where it is written">
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
                <Mark tone="critical">It could not be asked: {found.failures[0].problem}</Mark>
              ) : found.fired + found.waited === 0 ? (
                <Mark tone="ok">It would not have fired in the last {SPANS.find(([s]) => s === range)?.[1]}.</Mark>
              ) : (
                <>
                  {many(found.fired, "alert")} would have fired{changed ? ", with this change" : ""},{" "}
                  {count(found.waited)} waited and did not.
                </>
              )}
            </p>
            {found.episodes.length > 0 && <Timeline found={found} />}
            <p class="dim small">
              {count(found.steps)} evaluations from {day(found.since)} to {day(found.until)}
              {found.fired + found.waited > found.episodes.length
                ? `; the first ${count(found.episodes.length)} are shown`
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
  const at = (time: string | null) =>
    `${(100 * Math.max(0, Math.min(reach, (time ? Date.parse(time) : start + reach) - start))) / reach}%`;
  const width = (from: string, until: string | null) =>
    `${Math.max(0.4, (100 * ((until ? Date.parse(until) : start + reach) - Math.max(start, Date.parse(from)))) / reach)}%`;
  const columns: Column<Episode>[] = [
    { id: "where", title: "Series", value: (e) => short(e.labels) || e.alert, cell: (e) => short(e.labels) || e.alert },
    {
      id: "line",
      title: "When",
      value: (e) => e.fired_at ?? e.active_at,
      class: "timeline",
      cell: (e) => (
        <div
          class="episode"
          role="img"
          aria-label={`${e.fired_at ? `fires at ${day(e.fired_at)}` : "waits and does not fire"}${e.ended_at ? `, ends at ${day(e.ended_at)}` : ", still true at the end"}`}
        >
          <i class="wait" style={{ left: at(e.active_at), width: width(e.active_at, e.fired_at ?? e.ended_at) }} />
          {e.fired_at && <i class="fire" style={{ left: at(e.fired_at), width: width(e.fired_at, e.ended_at) }} />}
        </div>
      ),
    },
    {
      id: "fired",
      title: "Fires",
      value: (e) => e.fired_at,
      cell: (e) => (e.fired_at ? <Time at={e.fired_at} full /> : <span class="dim">never</span>),
    },
    {
      id: "lasts",
      title: "Lasts",
      numeric: true,
      value: (e) => (e.ended_at ? Date.parse(e.ended_at) : start + reach) - Date.parse(e.fired_at ?? e.active_at),
      cell: (e) =>
        `${e.ended_at ? "" : "≥ "}${ago((e.ended_at ? Date.parse(e.ended_at) : start + reach) - Date.parse(e.fired_at ?? e.active_at))}`,
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
        caption="What would have fired"
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
          true, waiting
        </span>
        <span>
          <i class="warn" aria-hidden="true" />
          fires
        </span>
      </p>
    </>
  );
}
