// One incident: title, cause, causes ruled out, timeline, evidence, plan and notes.

import { useState } from "preact/hooks";
import {
  Chip,
  Empty,
  focusOnMount,
  incidentState,
  Panel,
  RequestProblem,
  SeverityChip,
  Skeleton,
  Time,
} from "../../components/parts";
import { Strips } from "../../components/strips";
import { request, useRequest } from "../../lib/api";
import { entryName, humanise, money, plural, shortDuration, workloadName } from "../../lib/format";
import type { Mark } from "../../lib/lines";
import { memberMarks } from "../../lib/marks";
import { placeStrips } from "../../lib/promql";
import { type PageProps, param } from "../../lib/router";
import { now, setState, useHub } from "../../lib/store";
import type { Card, Detail } from "../../lib/types";
import { BlastPanel, RecurrencePanel } from "./blast";
import { NotificationsPanel, SilencedChip } from "./notifications";
import { PlanPanel } from "./repair";
import { DiagnosisPanel, EvidencePanel } from "./why";
import { IncidentActions } from "./work";

export function IncidentPage({ id, theme, address }: PageProps) {
  const hub = useHub();
  const card = [...(hub.open ?? []), ...(hub.closed ?? [])].find((c) => c.id === id);
  const [changeCount, setChangeCount] = useState(0);
  const reload = () => setChangeCount((n) => n + 1);
  const version = `${card && cardVersion(card)} ${changeCount}`;
  const { answer, problem } = useRequest<Detail>(`/api/incidents/${encodeURIComponent(id)}`, version);
  if (!answer)
    return (
      <main class="single">
        {problem ? (
          <Panel>
            <Empty title={problem.status === 404 ? `Incident ${id} not found` : "Loading the incident failed"}>
              {problem.status !== 404 && `${problem.message}. `}
              <a href="/incidents">All incidents</a>
            </Empty>
          </Panel>
        ) : (
          <Panel>
            <Skeleton lines={8} />
          </Panel>
        )}
      </main>
    );
  const { incident, diagnosis } = answer;
  const isOpen = incident.state !== "resolved";
  const opened = Date.parse(incident.opened_at);
  const ended = incident.resolved_at ? Date.parse(incident.resolved_at) : now();
  const until = Math.ceil(Math.max(opened + 60e3, Math.min(now(), ended + 120e3)) / 10000) * 10000;
  return (
    <main class="columns" data-testid="incident-page">
      <div>
        <Panel class="head">
          <div class="chips">
            <SeverityChip severity={incident.severity} />
            <Chip>
              {incidentState(incident)}
              {isOpen ? "" : " after"} {shortDuration(ended - opened)}
            </Chip>
            <Chip>{incident.id}</Chip>
            <Chip>
              <Time at={incident.opened_at} full />
            </Chip>
            <SilencedChip silence={answer.silenced_by} />
          </div>
          <h1 data-testid="title">{incident.title}</h1>
          <p class="lead" data-testid="lead">
            {diagnosis?.findings[0]?.why ?? "No finding yet: collecting evidence."} {describeImpact(answer)}
          </p>
          <IncidentActions detail={answer} done={reload} />
        </Panel>
        <RequestProblem problem={problem} isStale />
        <DiagnosisPanel
          findings={diagnosis?.findings ?? []}
          checked={diagnosis?.looked_at ?? []}
          nextCheck={diagnosis?.tell_apart}
        />
        <Panel
          title="Timeline"
          hint={`${incident.place_name} · hardware, fabric, job, alerts and actions on one time axis`}
          id="timeline-panel"
        >
          <Strips
            id="timeline"
            name={`Readings before and during ${incident.title}`}
            strips={placeStrips(incident.place, incident.workloads).filter((s) => s.label !== "Memory used")}
            omitsEmpty
            start={opened - lookbackMs(ended - opened)}
            end={until}
            theme={theme}
            band={40}
            marks={marksOf(answer)}
          />
        </Panel>
        <EvidencePanel detail={answer} />
      </div>
      <aside>
        <PlanPanel
          detail={answer}
          version={`${version} ${hub.updatedAt?.slice(0, 18)}`}
          done={reload}
          focusesApprove={param(address, "plan") === "1"}
        />
        <BlastPanel detail={answer} />
        <RecurrencePanel incident={incident} />
        <NotificationsPanel id={id} version={`${version} ${answer.timeline.length}`} />
        <Notes
          detail={answer}
          done={reload}
          focusesNote={param(address, "note") === "1"}
          docs={hub.status?.docs_url ?? null}
        />
      </aside>
    </main>
  );
}

/** The time shown before the incident; it grows in steps, so that a longer incident seldom reloads the chart. */
const lookbackMs = (lasted: number) => (lasted < 7200e3 ? 600e3 : lasted < 86400e3 ? 3600e3 : 21600e3);

const cardVersion = (c: Card) =>
  [incidentState(c), c.signals, c.confidence, c.next_step, c.assignee, c.silenced_by?.id, c.repair?.activity].join(" ");

/** The impact and its cost, in one sentence. */
function describeImpact({ incident, blast }: Detail): string {
  if (!blast?.hits.length)
    return incident.workloads.length ? `Impact: ${incident.workloads.map(workloadName).join(", ")}.` : "";
  const [firstHit] = blast.hits;
  const otherCount = blast.hits.length - 1;
  const name = `${workloadName(firstHit.workload)}${firstHit.gpus == null ? "" : ` (${plural(firstHit.gpus, "GPU")})`}`;
  const affected = otherCount ? `${name} and ${plural(otherCount, "more workload")}` : name;
  if (!blast.gpus && blast.counted_in.length) return `Impact: counted in ${blast.counted_in.join(", ")}.`;
  if (!blast.gpus)
    return firstHit.stopped
      ? `Impact: ${affected}, cost unknown.`
      : `May affect ${affected}: no GPU is lost, idle or waiting.`;
  return `Impact: ${affected}, about ${money(blast.dollars_per_hour, blast.currency)} / h.`;
}

/** Entries without a mark: the chart shows them already, or they are not actions. */
const HIDDEN_ENTRIES = ["opened", "joined", "ended", "diagnosis", "plan", "planned", "note"];

/** The label of an entry; the entry of a repair names its new state: cordoning, draining, done. */
const entryLabel = (e: Detail["timeline"][number]) =>
  humanise(e.kind === "repair" ? String((e.body as { state?: string } | null)?.state ?? e.kind) : e.kind);

function marksOf({ incident, timeline }: Detail): Mark[] {
  const actions = timeline
    .map((e) => ({ at: e.at, label: entryLabel(e) }))
    .filter((e) => !HIDDEN_ENTRIES.includes(e.label))
    .slice(0, 12)
    .map((e) => ({
      ...e,
      tone: /resolved|done/.test(e.label) ? "ok" : /failed|refused|rolled/.test(e.label) ? "warn" : "accent",
    }));
  const resolution =
    incident.resolved_at && !actions.some((d) => d.label === "resolved")
      ? [{ at: incident.resolved_at, label: "resolved", tone: "ok" }]
      : [];
  return [...memberMarks(incident.members), ...actions, ...resolution];
}

const SHOWN_ENTRIES = 12;

function Notes({
  detail: { timeline, incident, runbook },
  done,
  focusesNote,
  docs,
}: {
  detail: Detail;
  done: () => void;
  focusesNote: boolean;
  docs: string | null;
}) {
  const [isExpanded, setExpanded] = useState(false);
  const earlier = isExpanded ? 0 : Math.max(0, timeline.length - SHOWN_ENTRIES);
  const send = async (event: Event) => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const text = new FormData(form).get("text");
    try {
      await request(`/api/incidents/${incident.id}/note`, "POST", { text });
      form.reset();
      done();
    } catch (problem) {
      setState({ notice: (problem as Error).message });
    }
  };
  const runbookLink =
    runbook &&
    (docs ? (
      <a
        href={`${docs.replace(/\/$/, "")}/${runbook.replace(/^docs\//, "")}`}
        target="_blank"
        rel="noreferrer"
        data-testid="runbook"
      >
        {humanise(incident.cause)}
      </a>
    ) : (
      <code data-testid="runbook">{runbook}</code>
    ));
  return (
    <Panel title="Log and notes" hint="actions of the hub and of users" id="notes-panel">
      {runbookLink && <p class="small runbook">Runbook: {runbookLink}</p>}
      {earlier > 0 && (
        <button type="button" class="plain" data-testid="earlier" onClick={() => setExpanded(true)}>
          Show {earlier} earlier
        </button>
      )}
      <ol class="journal">
        {timeline.slice(earlier).map((e, i) => (
          <li key={i}>
            <Time at={e.at} /> <b>{e.actor}</b> {e.kind === "repair" ? `repair: ${entryLabel(e)}` : entryName(e.kind)}
            {entryText(e.body) && <p>{entryText(e.body)}</p>}
          </li>
        ))}
      </ol>
      <form onSubmit={send}>
        <input
          id="note"
          name="text"
          data-testid="note"
          required
          maxLength={4000}
          placeholder="Write a note"
          aria-label="Write a note"
          ref={focusesNote ? focusOnMount : undefined}
        />
        <button type="submit">Add note</button>
      </form>
      <p class="keys">
        <kbd>a</kbd> acknowledge <kbd>n</kbd> note <kbd>e</kbd> export
      </p>
    </Panel>
  );
}

export function entryText(body: unknown): string {
  if (typeof body === "string") return body;
  const fields = body as Record<string, unknown> | null;
  return String(fields?.text ?? fields?.why ?? "");
}
