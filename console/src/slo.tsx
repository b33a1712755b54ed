// Objectives: how well each is kept, what is left of its error budget, how fast it burns, and the budget over its window.

import { tone } from "./charts";
import { ago, percent, share, words } from "./format";
import { now, useAsk, useHub } from "./hub";
import { Empty, Panel, Problem, Skeleton, Time } from "./parts";
import { put } from "./router";
import { Strips } from "./strips";
import type { BurnRate, Slo } from "./types";

const STATE: Record<Slo["state"], { glyph: string; tone: string; text: string }> = {
  burning_fast: { glyph: "✕", tone: "critical", text: "burns fast" }, spent: { glyph: "✕", tone: "critical", text: "spent" },
  burning: { glyph: "▲", tone: "warning", text: "burns" }, unknown: { glyph: "·", tone: "", text: "unknown" }, ok: { glyph: "✓", tone: "ok", text: "kept" },
};
const UNITS: Record<string, number> = { s: 1e3, m: 6e4, h: 36e5, d: 864e5, w: 6048e5, y: 31536e6 };
/** `28d`, `1h30m` → milliseconds. */
const span = (text: string) => [...text.matchAll(/(\d+)([smhdwy])/g)].reduce((sum, [, n, unit]) => sum + Number(n) * UNITS[unit], 0);
const key = (slo: Slo) => [slo.name, ...Object.values(slo.labels)].join("/");
const signed = (n: number) => percent(n).replace("-", "−");
const times = (rate: number | null) => (rate == null ? "unknown" : `${Number(rate.toFixed(rate < 99.95 ? 1 : 0))}×`);

export function SloPage({ address, theme }: { address: URL; theme: string }) {
  const { open, frame, status } = useHub();
  const version = `${Math.floor(Date.parse(frame?.at ?? "0") / 15000)} ${open?.map((c) => c.id + c.state).join()}`;
  const { answer, problem } = useAsk<{ slos: Slo[] }>("/api/slos", version);
  const slos = answer?.slos, chosen = slos?.find((s) => key(s) === address.searchParams.get("slo")) ?? slos?.[0];
  return (
    <main class="single stack" data-testid="slo-page">
      <Panel title="Objectives" hint={slos && summary(slos)} id="slo-panel">
        {problem && <Problem>{slos ? `This is what was known before: ${problem.message}` : problem.message}</Problem>}
        {!slos ? !problem && <Skeleton lines={6} /> : slos.length === 0 ? <Empty title="There are no objectives">Name a file of them as <code>slos</code> under <code>[rules]</code>; the shipped ones are in <code>packs/slo.yaml</code>.</Empty> :
          <table class="list slos"><thead><tr><th>Objective</th><th class="n">Now</th><th>Budget left</th>{slos[0].burn_rates.map((b) => <th class="n" key={b.window} title={`how many times too fast, over ${b.window}`}>Burn {b.window}</th>)}<th>State</th></tr></thead>
            <tbody>{slos.map((s) => <Row slo={s} key={key(s)} chosen={s === chosen} />)}</tbody></table>}
      </Panel>
      {chosen && status && <Budget slo={chosen} theme={theme} />}
    </main>
  );
}

const summary = (slos: Slo[]) => {
  const bad = slos.filter((s) => s.state !== "ok" && s.state !== "unknown").length, unknown = slos.filter((s) => s.state === "unknown").length;
  return `${slos.length} in all · ${bad ? `${bad} in trouble` : "none in trouble"}${unknown ? ` · ${unknown} unknown` : ""}`;
};

function Row({ slo, chosen }: { slo: Slo; chosen: boolean }) {
  const state = STATE[slo.state];
  return (
    <tr data-testid="slo-row" data-state={slo.state} aria-current={chosen || undefined} onClick={() => put("slo", key(slo))}>
      <td><button type="button" class="plain" aria-pressed={chosen} onClick={() => put("slo", key(slo))}>{slo.title}</button><small>{slo.name}{slo.labels.cluster ? ` · ${slo.labels.cluster}` : ""}</small></td>
      <td class="n">{share(slo.indicator)}<small>goal {share(slo.objective)}</small></td>
      <td><BudgetBar slo={slo} /></td>
      {slo.burn_rates.map((b) => <Burn burn={b} key={b.window} />)}
      <td><span class={`mark ${state.tone}`} aria-hidden="true">{state.glyph}</span>{state.text}{slo.since && <> for {ago(now() - Date.parse(slo.since))}</>}
        {slo.incidents.length > 0 && <small>{slo.incidents.map((id) => <a key={id} href={`/incidents/${id}`} data-testid="slo-incident">{id}</a>)}</small>}</td>
    </tr>
  );
}

function BudgetBar({ slo }: { slo: Slo }) {
  if (slo.left == null) return <>unknown<small>no samples</small></>;
  const left = Math.max(0, Math.min(1, slo.left));
  return <div class={`bar budget ${STATE[slo.state].tone}`} role="img" aria-label={`${signed(100 * slo.left)} of the budget is left`} data-testid="budget-bar"><b>{signed(100 * slo.left)}</b><em><i style={{ width: `${100 * left}%` }} /></em></div>;
}

/** A burn of both windows above the factor is what someone is told about; it is marked with a glyph, not with colour alone. */
function Burn({ burn }: { burn: BurnRate }) {
  const over = burn.rate != null && burn.short_rate != null && Math.min(burn.rate, burn.short_rate) > burn.factor;
  return <td class="n" title={`over ${burn.short_window}: ${times(burn.short_rate)}`}>{over && <span class={`mark ${burn.severity}`}>{burn.severity === "critical" ? "✕" : "▲"}</span>}{times(burn.rate)}<small>limit {times(burn.factor)}</small></td>;
}

function Budget({ slo, theme }: { slo: Slo; theme: string }) {
  const { open } = useHub(), end = Math.floor(now() / 60000) * 60000, start = end - span(slo.window);
  const burn = `slo:error_ratio:rate1h${slo.query.slice(slo.query.indexOf("{"))} / ${Number((1 - slo.objective).toPrecision(6))}`;
  const told = (open ?? []).filter((c) => slo.incidents.includes(c.id));
  return (
    <Panel title={`Error budget for ${slo.title}`} hint={<>over {slo.window}{slo.covered && slo.covered !== slo.window ? `, of which samples of ${slo.covered} are kept` : ""}</>} id="slo-chart">
      <Strips id="slo-strips" strips={[{ label: "Budget left", unit: "%", expr: `100 * ${slo.query}` }, { label: "Burn rate, 1 h", unit: "×", expr: burn, tone: "dim" }]}
        start={start} end={end} marks={told.map((c) => ({ at: c.opened_at, label: c.id, tone: tone(c.severity) }))} theme={theme} band={110} key={slo.query} />
      <table class="facts"><tbody>
        <tr><th>State</th><td>{words(slo.state)}{slo.since && <> since <Time at={slo.since} full /></>}</td></tr>
        <tr><th>Incidents</th><td>{slo.incidents.length ? slo.incidents.map((id) => <a key={id} href={`/incidents/${id}`}>{id} </a>) : <>none open about it · <a href="/incidents?all=1">all incidents</a></>}</td></tr>
        <tr><th>Query</th><td><a href={`/api/v1/query?query=${encodeURIComponent(slo.query)}`} target="_blank" rel="noreferrer" data-testid="slo-query"><code>{slo.query}</code></a></td></tr>
      </tbody></table>
    </Panel>
  );
}
