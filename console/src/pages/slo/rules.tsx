// Rules: pending and firing alerts, the state of each rule, and the replay of a rule on stored samples.

import { useMemo } from "preact/hooks";
import { Choice, Empty, Level, Mark, Panel, Tile, Time } from "../../components/parts";
import { type Column, Table } from "../../components/table";
import { useAsk } from "../../lib/api";
import { wholeUnits } from "../../lib/durations";
import { ago, count, countOf, many, words } from "../../lib/format";
import { type PageProps, param, put, putAll, withParams } from "../../lib/router";
import { now, useHub, usePulse } from "../../lib/store";
import type { Severity } from "../../lib/types";
import { ReplayRule } from "./replay_rule";
import { type Alert, type Rule, type Rules, short, stateOf, toneOf } from "./rule_labels";

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
      {(chosen || param(address, "expr")) && <ReplayRule rule={chosen} address={address} theme={theme} key={name} />}
      {answer && answer.alerts.length > 0 && (
        <Panel
          title="Alerts"
          id="alerts-panel"
          hint={`${count(answer.alerts_total)} pending or firing${shownAlerts(answer)}`}
        >
          <Table
            id="alerts"
            caption="Pending and firing alerts"
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
        hint={shown && answer && `${countOf(shown.length, answer.rules.length)} · select one to replay it`}
        side={
          <div class="pick">
            <input
              id="filter"
              class="narrow"
              type="search"
              value={param(address, "q")}
              placeholder="Name, cause or metric"
              aria-label="Filter rules"
              data-testid="rules-filter"
              onInput={(e) => put("q", e.currentTarget.value)}
            />
            <Choice
              label="which rules"
              id="rules-state"
              options={[
                ["all", "All"],
                ["active", "Active"],
                ["broken", "Failing"],
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
              <Empty title="No rule matches">Change the filter.</Empty>
            ) : (
              <Empty title="This hub evaluates no rules">
                Another server evaluates them, or this is a recording. You can still{" "}
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
    <section class="tiles even" aria-label="summary of rules">
      <Tile
        id="tile-firing"
        name="Firing"
        value={count(answer.rules.reduce((sum, r) => sum + r.firing, 0))}
        tone={firing.some((r) => r.severity === "critical") ? "bad" : firing.length ? "warn" : undefined}
        meaning={firing.length ? `alerts of ${many(firing.length, "rule")}` : "no rule is firing"}
        href={withParams(address, { state: "active" })}
      />
      <Tile
        id="tile-waiting"
        name="Pending"
        value={count(answer.rules.reduce((sum, r) => sum + r.pending, 0))}
        meaning={waits.length ? `${many(waits.length, "rule")}: \`for\` not reached yet` : "no rule is pending"}
      />
      <Tile
        id="tile-rules"
        name="Alerting rules"
        value={count(answer.rules.length)}
        meaning={
          status?.rules.is_successful === false
            ? "reload failed; the previous rules stay in use"
            : "same as the rule files"
        }
      />
      <Tile
        id="tile-broken"
        name="Evaluation errors"
        value={count(broken.length)}
        tone={broken.length ? "bad" : undefined}
        meaning={
          broken.length
            ? broken
                .slice(0, 2)
                .map((r) => r.name)
                .join(", ")
            : "all evaluations succeeded"
        }
        href={withParams(address, { state: "broken" })}
      />
      <Tile
        id="tile-spent"
        name="Evaluation time"
        value={total < 1 ? `${(1000 * total).toFixed(0)} ms` : `${total.toFixed(1)} s`}
        meaning="for all rules"
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
            {[r.firing && `${count(r.firing)} firing`, r.pending && `${count(r.pending)} pending`]
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
  { id: "for", title: "For", numeric: true, value: (r) => r.for_seconds, cell: (r) => wholeUnits(r.for_seconds) },
  {
    id: "cause",
    title: "Cause",
    value: (r) => words(r.cause),
    cell: (r) => (r.cause ? words(r.cause) : <span class="dim">–</span>),
    minor: true,
  },
  {
    id: "cost",
    title: "Evaluation time",
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
        {a.state}
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
    title: "Labels",
    value: (a) => short(a.labels),
    cell: (a) => short(a.labels) || <span class="dim">none</span>,
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

const shownAlerts = ({ alerts, alerts_total }: Rules) =>
  alerts_total > alerts.length ? `, ${alerts.length} shown` : "";
