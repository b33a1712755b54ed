// One incident: what, why and what it is not, the time around it, the evidence, the plan, and what people did.

import { useState } from "preact/hooks";
import { gpuStrips, memberMarks } from "./charts";
import { ago, percent, words } from "./format";
import { ask, now, set, useAsk, useHub } from "./hub";
import { BlastPanel, SilencedChip, ToldPanel, WorkPanel } from "./incident_work";
import { Chip, Empty, Level, Panel, Problem, Skeleton, Time } from "./parts";
import { PlanPanel } from "./repair";
import { Strips } from "./strips";
import type { Card, Detail, Finding } from "./types";

export function IncidentPage({ id, theme }: { id: string; theme: string }) {
  const hub = useHub();
  const live = [...(hub.open ?? []), ...(hub.closed ?? [])].find((c) => c.id === id);
  const [changes, change] = useState(0), done = () => change((n) => n + 1);
  const version = `${live && stamp(live)} ${changes}`;
  const { answer, problem } = useAsk<Detail>(`/api/incidents/${encodeURIComponent(id)}`, version);
  if (!answer) return <main class="single">{problem ? <Panel><Empty title={problem.status === 404 ? `There is no incident ${id}` : "The incident cannot be shown"}>{problem.message}. <a href="/incidents">All incidents</a></Empty></Panel> : <Panel><Skeleton lines={8} /></Panel>}</main>;
  const { incident, diagnosis } = answer;
  const open = incident.state !== "resolved", opened = Date.parse(incident.opened_at);
  const ended = incident.resolved_at ? Date.parse(incident.resolved_at) : now();
  const until = Math.max(opened + 60e3, Math.min(now(), ended + 120e3, opened + 3600e3));
  const best = diagnosis?.findings[0];
  const marks = (verb: string) => answer.timeline.filter((e) => e.kind.includes(verb)).slice(0, 3).map((e) => ({ at: e.at, label: words(e.kind), tone: "accent" }));
  return (
    <main class="columns" data-testid="incident-page">
      <div>
        <Panel class="head">
          <div class="chips"><Level severity={incident.severity} /><Chip>{incident.state} {ago((open ? now() : ended) - opened)}</Chip><Chip>{incident.id}</Chip><Chip><Time at={incident.opened_at} full /></Chip>{incident.assignee && <Chip tone="accent">with {incident.assignee}</Chip>}<SilencedChip silence={answer.silenced_by} /></div>
          <h1 data-testid="title">{incident.title}</h1>
          <p class="lead" data-testid="lead">{best?.why ?? "No finding yet: the signals are being gathered."}</p>
          {incident.workloads.length > 0 && <p class="dim">Hits {incident.workloads.join(", ")}.</p>}
        </Panel>
        {problem && <Problem>{problem.message}; showing the last answer.</Problem>}
        <Why findings={diagnosis?.findings ?? []} looked={diagnosis?.looked_at ?? []} />
        <Panel title="Timeline" hint={`${incident.place_name} · hardware, alerts and people on one clock`} id="timeline-panel">
          <Strips id="timeline" strips={gpuStrips(incident.place).slice(0, 6)} start={opened - 600e3} end={until} theme={theme}
            marks={[...memberMarks(incident.members), ...marks("acknowledge"), ...(incident.resolved_at ? [{ at: incident.resolved_at, label: "resolved", tone: "ok" }] : [])]} />
        </Panel>
        <EvidenceLines detail={answer} />
      </div>
      <aside>
        <WorkPanel detail={answer} done={done} />
        <PlanPanel detail={answer} version={`${version} ${hub.heard}`} done={done} />
        <BlastPanel detail={answer} />
        <ToldPanel id={id} version={`${version} ${answer.timeline.length}`} />
        <Notes detail={answer} done={done} />
      </aside>
    </main>
  );
}
const stamp = (c: Card) => `${c.state} ${c.signals} ${c.confidence} ${c.next_step} ${c.assignee} ${c.silenced_by?.id}`;

function Why({ findings, looked }: { findings: Finding[]; looked: string[] }) {
  const out = new Map(findings.flatMap((f) => f.ruled_out).map((r) => [r.cause, r.why]));
  findings.forEach((f) => out.delete(f.cause));
  return (
    <Panel title="Why" hint="ranked, with what was ruled out" id="why-panel">
      {findings.length === 0 && out.size === 0 ? <Empty title="No finding yet">{looked.length ? `Looked at ${looked.join(", ")}.` : "Evidence is still being gathered."}</Empty> :
        <table class="why"><thead><tr><th>Cause</th><th>Likely</th><th>Because</th></tr></thead><tbody>
          {findings.map((f) => <tr key={f.cause} data-testid="finding"><td>{f.title}<small>{f.cause}</small></td><td><Bar share={f.confidence} /></td><td>{f.why}</td></tr>)}
          {[...out].map(([cause, why]) => <tr key={cause} class="out" data-testid="ruled-out"><td>{words(cause)}</td><td><span class="dim">ruled out</span></td><td>{why}</td></tr>)}
        </tbody></table>}
      {findings.length > 0 && looked.length > 0 && <p class="dim small">Looked at {looked.join(", ")}.</p>}
    </Panel>
  );
}
const Bar = ({ share }: { share: number }) => (
  <div class="bar" role="img" aria-label={`likely ${percent(100 * share)}`}><i style={{ width: `${100 * share}%` }} /><span>{percent(100 * share)}</span></div>
);

function EvidenceLines({ detail }: { detail: Detail }) {
  const seen = new Set<string>();
  const lines = (detail.diagnosis?.findings ?? []).flatMap((f) => f.evidence)
    .concat(detail.incident.members.map((m) => ({ source: m.kind, text: m.text, at: m.since })))
    .filter((e) => !seen.has(e.text) && seen.add(e.text))
    .sort((a, b) => (a.at ?? "").localeCompare(b.at ?? ""));
  return (
    <Panel title="Evidence" hint={`${lines.length} observed facts`} id="evidence-panel">
      {lines.length === 0 ? <Empty title="Nothing observed yet" /> : <ol class="evidence">{lines.map((e) => <li key={e.text}>{e.at ? <Time at={e.at} millis /> : <span>{"–".padEnd(12)}</span>}<b title={e.source}>{e.source}</b><span>{e.text}</span></li>)}</ol>}
    </Panel>
  );
}

const SHOWN = 12;
function Notes({ detail: { timeline, incident }, done }: { detail: Detail; done: () => void }) {
  const [all, showAll] = useState(false), earlier = all ? 0 : Math.max(0, timeline.length - SHOWN);
  const send = async (event: Event) => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement, text = new FormData(form).get("text");
    try { await ask(`/api/incidents/${incident.id}/note`, "POST", { text }); form.reset(); done(); }
    catch (problem) { set({ notice: (problem as Error).message }); }
  };
  return (
    <Panel title="Journal" hint="what the hub and people did" id="notes-panel">
      {earlier > 0 && <button type="button" class="plain" data-testid="earlier" onClick={() => showAll(true)}>{earlier} earlier</button>}
      <ol class="journal">{timeline.slice(earlier).map((e, i) => <li key={i}><Time at={e.at} /> <b>{e.actor}</b> {words(e.kind)}{tell(e.body) && <p>{tell(e.body)}</p>}</li>)}</ol>
      <form onSubmit={send}><input id="note" name="text" data-testid="note" required maxLength={4000} placeholder="Write a note" aria-label="Write a note" /><button>Note</button></form>
      <p class="keys"><kbd>a</kbd> acknowledge <kbd>n</kbd> note <kbd>e</kbd> export</p>
    </Panel>
  );
}
function tell(body: unknown): string {
  if (typeof body === "string") return body;
  const fields = body as Record<string, unknown> | null;
  return String(fields?.text ?? fields?.why ?? "");
}
