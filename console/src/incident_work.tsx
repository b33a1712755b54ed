// Working on one incident: whom it hits, who has it, who is told and who is not, and the report to hand over.

import { useState } from "preact/hooks";
import { ago, count, many, utc, words } from "./format";
import { acknowledge, ask, now, set, useAsk } from "./hub";
import { Chip, Empty, focus, Panel, Problem, Skeleton, Time } from "./parts";
import type { Blast, Detail, Notice, Silenced } from "./types";

const money = new Intl.NumberFormat("en", { style: "currency", currency: "USD", maximumFractionDigits: 0 });
const SPANS = [["1h", "1 hour"], ["4h", "4 hours"], ["1d", "1 day"]];
type Deed = "assign" | "silence" | "resolve" | null;

/** Send one change; the page is asked anew by `done`, and a refusal is said in words. */
async function send(path: string, body: unknown, told: string, done: () => void, method = "POST"): Promise<boolean> {
  try { await ask(path, method, body); set({ notice: told }); done(); return true; }
  catch (problem) { set({ notice: (problem as Error).message }); return false; }
}
const field = (event: Event, name: string) => String(new FormData(event.currentTarget as HTMLFormElement).get(name) ?? "").trim();

export function WorkPanel({ detail: { incident, silenced_by }, done }: { detail: Detail; done: () => void }) {
  const [asking, askFor] = useState<Deed>(null);
  const path = `/api/incidents/${incident.id}`, open = incident.state !== "resolved";
  const submit = (told: string, verb: string, body: (event: Event) => unknown) => async (event: Event) => {
    event.preventDefault();
    if (await send(`${path}/${verb}`, body(event), told, done)) askFor(null);
  };
  const toggle = (deed: Deed) => () => askFor(asking === deed ? null : deed);
  return (
    <Panel title="Work" hint={incident.assignee ? `with ${incident.assignee}` : open ? "nobody has it yet" : "nobody had it"} id="work-panel">
      {silenced_by && <SilencedLine silence={silenced_by} done={done} />}
      <div class="buttons first">
        {incident.state === "open" && <button type="button" class="primary" data-testid="acknowledge" onClick={() => acknowledge(incident.id).then(done)}>Acknowledge</button>}
        {open && <button type="button" data-testid="assign" aria-expanded={asking === "assign"} onClick={toggle("assign")}>Assign</button>}
        {open && !silenced_by && <button type="button" data-testid="silence" aria-expanded={asking === "silence"} onClick={toggle("silence")}>Silence</button>}
        {open && <button type="button" data-testid="resolve" aria-expanded={asking === "resolve"} onClick={toggle("resolve")}>Resolve</button>}
        <a class="button" data-testid="export" download={`${incident.id}.md`} href={`${path}/report`}>Report</a>
        <a class="button" data-testid="export-json" download={`${incident.id}.json`} href={`${path}/report?format=json`}>JSON</a>
      </div>
      {asking === "assign" && <form onSubmit={submit(`${incident.id} was assigned`, "assign", (e) => ({ to: field(e, "to") }))}>
        <input name="to" required maxLength={200} placeholder="Who takes it?" aria-label="Who takes it" defaultValue={incident.assignee ?? ""} data-testid="assign-to" ref={focus} /><button class="primary">Assign</button></form>}
      {asking === "silence" && <form class="tall" onSubmit={submit(`${incident.place_name} is silenced`, "silence", (e) => ({ for: field(e, "for"), reason: field(e, "reason") }))}>
        <p class="dim small">Nobody is told about anything at {incident.place_name}. It is still watched and shown.</p>
        <div class="row"><select name="for" aria-label="How long" data-testid="silence-for">{SPANS.map(([value, text]) => <option key={value} value={value}>{text}</option>)}</select>
          <input name="reason" required maxLength={1000} placeholder="Why? Everybody can read it" aria-label="Why" data-testid="silence-reason" ref={focus} /><button class="primary">Silence</button></div></form>}
      {asking === "resolve" && <form onSubmit={submit(`${incident.id} was resolved`, "resolve", (e) => ({ why: field(e, "why") }))}>
        <input name="why" required maxLength={4000} placeholder="What ended it?" aria-label="What ended it" ref={focus} /><button class="primary">Resolve</button></form>}
    </Panel>
  );
}

function SilencedLine({ silence, done }: { silence: Silenced; done: () => void }) {
  const end = () => send(`/api/silences/${encodeURIComponent(silence.id)}`, undefined, "The silence was ended", done, "DELETE");
  return (
    <p class="silenced" data-testid="silenced"><b>Silenced</b> by {silence.author} until <Time at={silence.ends_at} full /> ({ago(Date.parse(silence.ends_at) - now())} more): {silence.reason}
      <button type="button" class="plain" data-testid="unsilence" onClick={end}>End it now</button></p>
  );
}
export const SilencedChip = ({ silence }: { silence: Silenced | null | undefined }) =>
  silence ? <Chip tone="warning" title={`by ${silence.author} until ${utc(silence.ends_at)}: ${silence.reason}`}>silenced {ago(Date.parse(silence.ends_at) - now())}</Chip> : null;

export function BlastPanel({ detail: { incident, blast } }: { detail: Detail }) {
  const places = new Set(incident.members.map((m) => m.place.gpu ?? m.place.node)).size;
  return (
    <Panel title="Blast radius" hint={blast ? `${money.format(blast.dollars_per_hour)} an hour` : "unknown"} id="blast-panel">
      {!blast && <Problem>Whom it hits is unknown: the engine did not answer.</Problem>}
      <table class="facts"><tbody>
        <tr><th>Place</th><td>{incident.place.gpu ? <a href={`/gpu/${incident.place.gpu}`}>{incident.place_name}</a> : incident.place_name}</td></tr>
        {blast && <tr><th>GPUs</th><td>{many(blast.gpus, "GPU")}{blast.gpus > blast.broken_gpus && <small>{count(blast.broken_gpus)} broken; the others wait for them</small>}</td></tr>}
        <tr><th>Workloads</th><td>{blast ? <Hits blast={blast} /> : incident.workloads.join(", ") || "none known"}</td></tr>
        {blast && <tr><th>Teams</th><td>{blast.teams.join(", ") || "none known"}</td></tr>}
        {blast && <tr><th>Cost</th><td>{blast.gpu_hours.toFixed(1)} GPU-hours{incident.resolved_at ? "" : " so far"}, {money.format(blast.dollars_per_hour)} / h</td></tr>}
        <tr><th>Signals</th><td>{many(incident.members.length, "signal")} at {many(places, "place")}</td></tr>
        <tr><th>Cause</th><td>{words(incident.cause)}</td></tr>
        {incident.part_of && <tr><th>Part of</th><td><a href={`/incidents/${incident.part_of}`} data-testid="part-of">{incident.part_of}</a></td></tr>}
      </tbody></table>
    </Panel>
  );
}
function Hits({ blast }: { blast: Blast }) {
  const [all, showAll] = useState(false), shown = all ? blast.hits : blast.hits.slice(0, 5), rest = blast.hits.length - shown.length;
  if (!blast.hits.length) return <>none known</>;
  return <>{shown.map((h) => <div key={h.workload} data-testid="hit">{h.workload} <span class="dim">{h.gpus == null ? "GPUs unknown" : many(h.gpus, "GPU")}</span></div>)}
    {rest > 0 && <button type="button" class="plain" onClick={() => showAll(true)}>{rest} more</button>}</>;
}

const STATE: Record<Notice["state"], string> = { waiting: "waits", sending: "is being told", sent: "told", given_up: "not told" };
export function ToldPanel({ id, version }: { id: string; version: unknown }) {
  const { answer, problem } = useAsk<{ notices: Notice[] }>(`/api/incidents/${encodeURIComponent(id)}/notices`, version);
  const told = answer?.notices;
  return (
    <Panel title="Who was told" hint={told && many(told.length, "message")} id="told-panel">
      {problem && <Problem>{problem.message}</Problem>}
      {!told ? !problem && <Skeleton lines={2} /> : told.length === 0 ? <Empty title="Nobody">No message was due. <code>[notify] via</code> says who would be told.</Empty> :
        <ol class="journal">{told.map((n) => (
          <li key={n.id} data-testid="notice-row" data-state={n.state}><Time at={n.sent_at ?? n.due_at} /> <b>{n.receiver}</b> {STATE[n.state]}: {words(n.occasion)}
            {(n.answer || n.tries > 1) && <p class="dim">{[n.tries > 1 && `${n.tries} tries`, n.answer].filter(Boolean).join(", ")}</p>}</li>))}</ol>}
    </Panel>
  );
}
