// All incidents, newest first; state, severity and words to look for are in the address.

import { ago, percent } from "./format";
import { now, useAsk, useHub } from "./hub";
import { SilencedChip } from "./incident_work";
import { Empty, GLYPH, Panel, Problem, Skeleton, Time } from "./parts";
import { go, put } from "./router";
import type { Card } from "./types";

const STATES: [string, string][] = [["", "open"], ["acknowledged", "acknowledged"], ["resolved", "closed"], ["all", "all"]];
const SEVERITIES = ["critical", "warning", "info"];

/** `?state=resolved&severity=critical&text=rack`; `all=1` is what links of old say for `state=all`. */
export function IncidentsPage({ address, selected }: { address: URL; selected: number }) {
  const { open, closed } = useHub(), asked = address.searchParams;
  const state = asked.get("state") ?? (asked.get("all") === "1" ? "all" : ""), severity = asked.get("severity") ?? "", text = asked.get("text") ?? "";
  const version = JSON.stringify([open, closed].map((list) => list?.map((c) => [c.id, c.state, c.confidence, c.assignee, c.silenced_by?.id])));
  const { answer, problem } = useAsk<{ incidents: Card[] }>(`/api/incidents?open=${state === "all" || state === "resolved" ? 0 : 1}`, version);
  const found = answer?.incidents, rows = found?.filter((c) => fits(c, state, severity, text));
  const filtered = Boolean(severity || text || state === "acknowledged");
  return (
    <main class="single">
      <Panel title="Incidents" hint={rows && found && (filtered ? `${rows.length} of ${found.length}` : `${rows.length} ${state === "all" ? "in all" : state === "resolved" ? "closed" : "open"}`)} id="incidents-panel"
        side={<nav class="pick" aria-label="filter">
          <input class="narrow" type="search" value={text} placeholder="Title, place, cause, person" aria-label="Words to look for" data-testid="filter-text" onInput={(e) => put("text", e.currentTarget.value || null)} />
          <select value={severity} aria-label="Severity" data-testid="filter-severity" onChange={(e) => put("severity", e.currentTarget.value || null)}><option value="">any severity</option>{SEVERITIES.map((s) => <option key={s}>{s}</option>)}</select>
          {STATES.map(([value, name]) => <a key={value} href={to(address, value)} aria-current={state === value || undefined} data-testid={name}>{name}</a>)}
        </nav>}>
        {problem && <Problem>{rows ? `This is what was known before: ${problem.message}` : problem.message}</Problem>}
        {!rows ? !problem && <Skeleton lines={6} /> : rows.length === 0 ? <Nothing state={state} filtered={filtered} /> :
          <table class="list"><thead><tr><th>What</th><th>Place</th><th>State</th><th>Opened</th><th class="n">Sure</th><th>Next step</th></tr></thead>
            <tbody>{rows.map((c, i) => (
              <tr key={c.id} data-testid="incident-row" data-incident={c.id} aria-current={i === selected || undefined} onClick={() => go(`/incidents/${c.id}`)}>
                <td><span class={`mark ${c.state === "resolved" ? "closed" : c.severity}`} title={c.severity}>{GLYPH[c.severity]}</span><a href={`/incidents/${c.id}`}>{c.title}</a><small>{c.id}{c.part_of && ` · part of ${c.part_of}`}</small></td>
                <td>{c.place_name}</td><td>{c.state} {c.state !== "resolved" && ago(now() - Date.parse(c.opened_at))}<small class="plain">{c.assignee && `with ${c.assignee} `}<SilencedChip silence={c.silenced_by} /></small></td><td><Time at={c.opened_at} full /></td>
                <td class="n">{c.confidence == null ? "unknown" : percent(100 * c.confidence)}</td><td>{c.next_step ?? "–"}</td>
              </tr>))}</tbody></table>}
      </Panel>
    </main>
  );
}

function fits(card: Card, state: string, severity: string, text: string): boolean {
  if ((state === "acknowledged" || state === "resolved") && card.state !== state) return false;
  if (severity && card.severity !== severity) return false;
  const words = [card.id, card.title, card.place_name, card.cause, card.assignee ?? "", ...card.workloads].join(" ").toLowerCase();
  return text.toLowerCase().split(/\s+/).every((word) => words.includes(word));
}
function to(address: URL, state: string): string {
  const next = new URLSearchParams(address.search);
  next.delete("all");
  state ? next.set("state", state) : next.delete("state");
  return `/incidents${next.size ? `?${next}` : ""}`;
}
function Nothing({ state, filtered }: { state: string; filtered: boolean }) {
  if (filtered) return <Empty title="No incident fits the filter"><a href="/incidents">Drop the filter</a></Empty>;
  if (state === "all") return <Empty title="No incident has happened yet">The journal is empty.</Empty>;
  return state === "resolved" ? <Empty title="Nothing was closed yet"><a href="/incidents">Show open ones</a></Empty> : <Empty title="Nothing is open"><a href="/incidents?state=all">Show closed ones</a></Empty>;
}
