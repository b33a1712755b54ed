// All incidents, open ones first; the filter is in the address.

import { ago, percent } from "./format";
import { now, useAsk, useHub } from "./hub";
import { Empty, GLYPH, Panel, Problem, Skeleton, Time } from "./parts";
import { go } from "./router";
import type { Card } from "./types";

export function IncidentsPage({ address, selected }: { address: URL; selected: number }) {
  const { open, closed } = useHub(), all = address.searchParams.get("all") === "1";
  const version = JSON.stringify([open, closed].map((list) => list?.map((c) => [c.id, c.state, c.confidence])));
  const { answer, problem } = useAsk<{ incidents: Card[] }>(`/api/incidents?open=${all ? 0 : 1}`, version);
  const rows = answer?.incidents;
  return (
    <main class="single">
      <Panel title="Incidents" hint={rows && `${rows.length} ${all ? "in all" : "open"}`} id="incidents-panel"
        side={<nav class="pick" aria-label="filter"><a href="/incidents" aria-current={!all || undefined}>open</a> <a href="/incidents?all=1" aria-current={all || undefined} data-testid="all">all</a></nav>}>
        {problem && <Problem>{problem.message}</Problem>}
        {!rows ? !problem && <Skeleton lines={6} /> : rows.length === 0 ? <Empty title={all ? "No incident has happened yet" : "Nothing is open"}>{all ? "The journal is empty." : <a href="/incidents?all=1">Show closed ones</a>}</Empty> :
          <table class="list"><thead><tr><th>What</th><th>Place</th><th>State</th><th>Opened</th><th class="n">Sure</th><th>Next step</th></tr></thead>
            <tbody>{rows.map((c, i) => (
              <tr key={c.id} data-testid="incident-row" data-incident={c.id} aria-current={i === selected || undefined} onClick={() => go(`/incidents/${c.id}`)}>
                <td><span class={`mark ${c.state === "resolved" ? "closed" : c.severity}`} title={c.severity}>{GLYPH[c.severity]}</span><a href={`/incidents/${c.id}`}>{c.title}</a><small>{c.id}</small></td>
                <td>{c.place_name}</td><td>{c.state} {c.state !== "resolved" && ago(now() - Date.parse(c.opened_at))}</td><td><Time at={c.opened_at} full /></td>
                <td class="n">{c.confidence == null ? "unknown" : percent(100 * c.confidence)}</td><td>{c.next_step ?? "–"}</td>
              </tr>))}</tbody></table>}
      </Panel>
    </main>
  );
}
