// Rules: pending and firing alerts, the state of each rule, and the replay of a rule on stored samples.

import { useMemo } from "preact/hooks";
import { Choice, Empty, MarkedText, Panel, SeverityChip, Tile, Time } from "../../components/parts";
import { type Column, Table } from "../../components/table";
import { useRequest } from "../../lib/api";
import { wholeUnits } from "../../lib/durations";
import { count, countOfTotal, humanise, plural, shortDuration } from "../../lib/format";
import { type PageProps, param, setParam, setParams, withParams } from "../../lib/router";
import { now, useHub, usePulse } from "../../lib/store";
import type { Severity } from "../../lib/types";
import { ReplayRule } from "./replay_rule";
import { type Alert, type Rule, type Rules, ruleState, ruleTone, shortLabels } from "./rule_labels";

export function RulesView({ address, theme }: PageProps) {
  const { answer, problem } = useRequest<Rules>("/api/rules", usePulse());
  const q = param(address, "q").toLowerCase();
  const only = param(address, "state", "all");
  const name = param(address, "rule");
  const matches = (r: Rule) =>
    (only === "all" || (only === "active" ? r.firing + r.pending > 0 : r.health === "err")) &&
    (!q || `${r.name} ${r.group} ${r.cause} ${r.severity} ${r.expr} ${r.summary}`.toLowerCase().includes(q));
  const rules = useMemo(() => answer && withIds(answer.rules), [answer]);
  const shown = useMemo(() => rules?.filter(matches), [rules, q, only]);
  const chosen = rules?.find((r) => r.id === name);
  return (
    <>
      {answer && <RuleFigures answer={answer} address={address} />}
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
            maxRows={12}
            columns={ALERTS}
            choose={(a) => setParams({ rule: ruleOf(a, rules ?? []), expr: null, for: null })}
            empty={null}
          />
        </Panel>
      )}
      <Panel
        title="Rules"
        id="rules-panel"
        hint={shown && answer && `${countOfTotal(shown.length, answer.rules.length)} · select one to replay it`}
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
              onInput={(e) => setParam("q", e.currentTarget.value)}
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
              choose={(s) => setParam("state", s === "all" ? null : s)}
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
          maxRows={60}
          columns={RULES}
          choose={(r) => setParams({ rule: r.id === name ? null : r.id, expr: null, for: null })}
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

function withIds(rules: Rules["rules"]): Rule[] {
  const counts = new Map<string, number>();
  return rules.map((r) => {
    const n = (counts.get(r.name) ?? 0) + 1;
    counts.set(r.name, n);
    return { ...r, id: n > 1 ? `${r.name}:${n}` : r.name };
  });
}

/** The id of the rule of an alert; of several rules with its name, the active one with its severity. */
const ruleOf = (a: Alert, rules: Rule[]) =>
  rules.find((r) => r.name === a.name && r.severity === a.labels.severity && r.firing + r.pending > 0)?.id ?? a.name;

function RuleFigures({ answer, address }: { answer: Rules; address: URL }) {
  const { status } = useHub();
  const firingRules = answer.rules.filter((r) => r.firing);
  const pendingRules = answer.rules.filter((r) => r.pending && !r.firing);
  const failingRules = answer.rules.filter((r) => r.health === "err");
  const total = answer.rules.reduce((sum, r) => sum + r.seconds, 0);
  return (
    <section class="tiles even" aria-label="summary of rules">
      <Tile
        id="tile-firing"
        name="Firing"
        value={count(answer.rules.reduce((sum, r) => sum + r.firing, 0))}
        tone={firingRules.some((r) => r.severity === "critical") ? "bad" : firingRules.length ? "warn" : undefined}
        meaning={firingRules.length ? `alerts of ${plural(firingRules.length, "rule")}` : "no rule is firing"}
        href={withParams(address, { state: "active" })}
      />
      <Tile
        id="tile-waiting"
        name="Pending"
        value={count(answer.rules.reduce((sum, r) => sum + r.pending, 0))}
        meaning={
          pendingRules.length ? `${plural(pendingRules.length, "rule")}: \`for\` not reached yet` : "no rule is pending"
        }
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
        value={count(failingRules.length)}
        tone={failingRules.length ? "bad" : undefined}
        meaning={
          failingRules.length
            ? failingRules
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
        <button type="button" class="plain as-is" onClick={() => setParams({ rule: r.id, expr: null, for: null })}>
          {r.name}
        </button>
        <small class="plain">{r.summary.replace(/\{\{[^}]*\}\}/g, "…") || r.group}</small>
      </>
    ),
  },
  {
    id: "state",
    title: "State",
    value: (r) => ruleState(r),
    cell: (r) => (
      <>
        <MarkedText tone={ruleTone(r)}>{ruleState(r)}</MarkedText>
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
        <SeverityChip severity={r.severity as Severity} />
      ) : (
        r.severity || <span class="dim">none</span>
      ),
  },
  { id: "for", title: "For", numeric: true, value: (r) => r.for_seconds, cell: (r) => wholeUnits(r.for_seconds) },
  {
    id: "cause",
    title: "Cause",
    value: (r) => humanise(r.cause),
    cell: (r) => (r.cause ? humanise(r.cause) : <span class="dim">–</span>),
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
        <small class="plain">{a.summary || shortLabels(a.labels)}</small>
      </>
    ),
  },
  {
    id: "state",
    title: "State",
    value: (a) => a.state,
    cell: (a) => (
      <MarkedText tone={a.state === "firing" ? (a.labels.severity === "critical" ? "critical" : "warning") : "info"}>
        {a.state}
      </MarkedText>
    ),
  },
  {
    id: "since",
    title: "Since",
    value: (a) => a.active_at,
    cell: (a) => (
      <>
        <Time at={a.active_at} />
        <small class="plain">{shortDuration(now() - Date.parse(a.active_at))}</small>
      </>
    ),
  },
  {
    id: "where",
    title: "Labels",
    value: (a) => shortLabels(a.labels),
    cell: (a) => shortLabels(a.labels) || <span class="dim">none</span>,
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
