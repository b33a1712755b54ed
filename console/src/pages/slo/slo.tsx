// Objectives: their remaining error budgets and burn rates. The second tab shows rules and alerts.

import strips from "../../../../watchkeeper/packs/console/slo.json";
import { Empty, MarkedText, Panel, Tabs, Time } from "../../components/parts";
import { Strips } from "../../components/strips";
import { type Column, Table } from "../../components/table";
import { useRequest } from "../../lib/api";
import { milliseconds } from "../../lib/durations";
import { percent, sharePercent, shortDuration } from "../../lib/format";
import type { Strip } from "../../lib/lines";
import { severityTone } from "../../lib/marks";
import { fillStrips } from "../../lib/promql";
import { type PageProps, param, setParam, to } from "../../lib/router";
import { now, useHub } from "../../lib/store";
import type { BurnRate, Slo } from "../../lib/types";
import { RulesView } from "./rules";
import "../../styles/pages.css";

const STATE: Record<Slo["state"], { glyph: string; tone: string; text: string }> = {
  burning_fast: { glyph: "✕", tone: "critical", text: "burning fast" },
  spent: { glyph: "✕", tone: "critical", text: "exhausted" },
  burning: { glyph: "▲", tone: "warning", text: "burning" },
  unknown: { glyph: "·", tone: "", text: "unknown" },
  ok: { glyph: "✓", tone: "ok", text: "met" },
};

const sloKey = (slo: Slo) => [slo.name, ...Object.values(slo.labels)].join("/");

const signed = (n: number) => percent(n).replace("-", "−");

const times = (rate: number | null) => (rate == null ? "unknown" : `${Number(rate.toFixed(rate < 99.95 ? 1 : 0))}×`);

export function SloPage(p: PageProps) {
  const view = param(p.address, "view", "slo");
  return (
    <main class="single stack" data-testid="slo-page">
      <Tabs
        label="objectives or rules"
        path="/slo"
        tabs={[
          ["slo", "Objectives"],
          ["rules", "Rules and alerts"],
        ]}
        view={view}
      />
      {view === "rules" ? <RulesView {...p} /> : <Objectives {...p} />}
    </main>
  );
}

function Objectives({ address, theme }: PageProps) {
  const { open, frame, status } = useHub();
  const version = `${Math.floor(Date.parse(frame?.at ?? "0") / 15000)} ${open?.map((c) => c.id + c.state).join()}`;
  const { answer, problem } = useRequest<{ slos: Slo[] }>("/api/slos", version);
  const slos = answer?.slos;
  const chosen = slos?.find((s) => sloKey(s) === address.searchParams.get("slo")) ?? slos?.[0];
  return (
    <>
      <Panel title="Objectives" hint={slos && summary(slos)} id="slo-panel">
        <Table
          id="slos"
          class="slos"
          caption="Objectives and their remaining error budgets"
          rows={slos}
          problem={problem}
          rowKey={sloKey}
          rowTestId="slo-row"
          columns={columns(slos?.[0]?.burn_rates ?? [])}
          choose={(s) => setParam("slo", sloKey(s))}
          chosen={chosen && sloKey(chosen)}
          address={address}
          empty={
            <Empty title="No objectives">
              Set <code>slos</code> under <code>[rules]</code> to a file of objectives, such as{" "}
              <code>packs/slo.yaml</code>.
            </Empty>
          }
        />
      </Panel>
      {chosen && status && <Budget slo={chosen} theme={theme} />}
    </>
  );
}

const columns = (burns: BurnRate[]): Column<Slo>[] => [
  {
    id: "objective",
    title: "Objective",
    value: (s) => s.title,
    cell: (s) => (
      <>
        <button type="button" class="plain" onClick={() => setParam("slo", sloKey(s))}>
          {s.title}
        </button>
        <small>
          {s.name !== s.title && s.name}
          {s.labels.cluster ? ` · ${s.labels.cluster}` : ""}
        </small>
      </>
    ),
  },
  {
    id: "now",
    title: "Now",
    numeric: true,
    value: (s) => s.indicator,
    cell: (s) => (
      <>
        {sharePercent(s.indicator)}
        <small>objective {sharePercent(s.objective)}</small>
      </>
    ),
  },
  { id: "left", title: "Budget left", value: (s) => s.left, cell: (s) => <BudgetBar slo={s} /> },
  ...burns.map(
    (b, i): Column<Slo> => ({
      id: `burn-${b.window}`,
      title: `Burn ${b.window}`,
      numeric: true,
      hint: `burn rate over ${b.window}`,
      value: (s) => s.burn_rates[i]?.rate,
      cell: (s) => (s.burn_rates[i] ? <Burn burn={s.burn_rates[i]} /> : null),
      minor: i === 1,
    }),
  ),
  {
    id: "state",
    title: "State",
    value: (s) => s.state,
    cell: (s) => (
      <>
        <MarkedText tone={STATE[s.state].tone} glyph={STATE[s.state].glyph}>
          {STATE[s.state].text}
          {s.since && <> for {shortDuration(now() - Date.parse(s.since))}</>}
        </MarkedText>
        {s.incidents.length > 0 && (
          <small>
            {s.incidents.map((id) => (
              <a key={id} href={to.incident(id)} data-testid="slo-incident">
                {id}
              </a>
            ))}
          </small>
        )}
      </>
    ),
  },
];

const summary = (slos: Slo[]) => {
  const bad = slos.filter((s) => s.state !== "ok" && s.state !== "unknown").length;
  const unknown = slos.filter((s) => s.state === "unknown").length;
  const totals = `${slos.length} in total · ${bad || "none"} failing`;
  return unknown ? `${totals} · ${unknown} unknown` : totals;
};

function BudgetBar({ slo }: { slo: Slo }) {
  if (slo.left == null)
    return (
      <>
        unknown<small>no samples</small>
      </>
    );
  const left = Math.max(0, Math.min(1, slo.left));
  return (
    <div
      class={`bar budget ${STATE[slo.state].tone}`}
      role="img"
      aria-label={`${signed(100 * slo.left)} of the budget is left`}
      data-testid="budget-bar"
    >
      <b>{signed(100 * slo.left)}</b>
      <em>
        <i style={{ width: `${100 * left}%` }} />
      </em>
    </div>
  );
}

/** A burn rate; a glyph marks it if the rates of both windows exceed the factor, which makes the alert fire. */
function Burn({ burn }: { burn: BurnRate }) {
  const isOver = burn.rate != null && burn.short_rate != null && Math.min(burn.rate, burn.short_rate) > burn.factor;
  return (
    <span title={`over ${burn.short_window}: ${times(burn.short_rate)}`}>
      {isOver && <span class={`mark ${burn.severity}`}>{burn.severity === "critical" ? "✕" : "▲"}</span>}
      {times(burn.rate)}
      <small>limit {times(burn.factor)}</small>
    </span>
  );
}

function Budget({ slo, theme }: { slo: Slo; theme: string }) {
  const { open } = useHub();
  const end = Math.floor(now() / 60000) * 60000;
  const start = end - milliseconds(slo.window);
  const labels = slo.query.slice(slo.query.indexOf("{"));
  const budget = Number((1 - slo.objective).toPrecision(6));
  const incidents = (open ?? []).filter((c) => slo.incidents.includes(c.id));
  return (
    <Panel
      title={`Error budget for ${slo.title}`}
      hint={
        <>
          over {slo.window}
          {slo.covered && slo.covered !== slo.window ? `, samples for ${slo.covered}` : ""}
        </>
      }
      id="slo-chart"
    >
      <Strips
        id="slo-strips"
        strips={fillStrips(strips as Strip[], { query: slo.query, labels, budget })}
        start={start}
        end={end}
        marks={incidents.map((c) => ({ at: c.opened_at, label: c.id, tone: severityTone(c.severity) }))}
        theme={theme}
        band={110}
        key={slo.query}
      />
      <table class="facts">
        <tbody>
          <tr>
            <th>State</th>
            <td>
              {STATE[slo.state].text}
              {slo.since && (
                <>
                  {" "}
                  since <Time at={slo.since} full />
                </>
              )}
            </td>
          </tr>
          <tr>
            <th>Incidents</th>
            <td>
              {slo.incidents.length ? (
                slo.incidents.map((id) => (
                  <a key={id} href={to.incident(id)}>
                    {id}{" "}
                  </a>
                ))
              ) : (
                <>
                  none open · <a href="/incidents?all=1">all incidents</a>
                </>
              )}
            </td>
          </tr>
          <tr>
            <th>Query</th>
            <td>
              <a href={to.explore(slo.query)} data-testid="slo-query">
                <code>{slo.query}</code>
              </a>
            </td>
          </tr>
        </tbody>
      </table>
    </Panel>
  );
}
