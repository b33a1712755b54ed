// One incident: title, cause, causes ruled out, timeline, evidence, plan and notes.

import { useState } from "preact/hooks";
import { Chip, Empty, focus, Level, Panel, Skeleton, Time, Trouble } from "../../components/parts";
import { Strips } from "../../components/strips";
import { ask, useAsk } from "../../lib/api";
import { ago, dollars, entryName, many, words, workloadName } from "../../lib/format";
import type { Mark } from "../../lib/lines";
import { memberMarks } from "../../lib/marks";
import { layers } from "../../lib/promql";
import { type PageProps, param } from "../../lib/router";
import { now, set, useHub } from "../../lib/store";
import type { Card, Detail } from "../../lib/types";
import { BeforePanel, BlastPanel } from "./blast";
import { NotificationsPanel, SilencedChip } from "./notifications";
import { PlanPanel } from "./repair";
import { EvidenceLines, Why } from "./why";
import { WorkLine } from "./work";

export function IncidentPage({ id, theme, address }: PageProps) {
  const hub = useHub();
  const live = [...(hub.open ?? []), ...(hub.closed ?? [])].find((c) => c.id === id);
  const [changes, change] = useState(0);
  const done = () => change((n) => n + 1);
  const version = `${live && stamp(live)} ${changes}`;
  const { answer, problem } = useAsk<Detail>(`/api/incidents/${encodeURIComponent(id)}`, version);
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
  const open = incident.state !== "resolved";
  const opened = Date.parse(incident.opened_at);
  const ended = incident.resolved_at ? Date.parse(incident.resolved_at) : now();
  const until = Math.ceil(Math.max(opened + 60e3, Math.min(now(), ended + 120e3)) / 10000) * 10000;
  return (
    <main class="columns" data-testid="incident-page">
      <div>
        <Panel class="head">
          <div class="chips">
            <Level severity={incident.severity} />
            <Chip>
              {incident.state}
              {open ? "" : " after"} {ago(ended - opened)}
            </Chip>
            <Chip>{incident.id}</Chip>
            <Chip>
              <Time at={incident.opened_at} full />
            </Chip>
            <SilencedChip silence={answer.silenced_by} />
          </div>
          <h1 data-testid="title">{incident.title}</h1>
          <p class="lead" data-testid="lead">
            {diagnosis?.findings[0]?.why ?? "No finding yet: collecting evidence."} {impact(answer)}
          </p>
          <WorkLine detail={answer} done={done} />
        </Panel>
        <Trouble problem={problem} isStale />
        <Why findings={diagnosis?.findings ?? []} looked={diagnosis?.looked_at ?? []} apart={diagnosis?.tell_apart} />
        <Panel
          title="Timeline"
          hint={`${incident.place_name} · hardware, fabric, job, alerts and actions on one time axis`}
          id="timeline-panel"
        >
          <Strips
            id="timeline"
            name={`Readings before and during ${incident.title}`}
            strips={layers(incident.place, incident.workloads).filter((s) => s.label !== "Memory used")}
            quiet
            start={opened - before(ended - opened)}
            end={until}
            theme={theme}
            band={40}
            marks={marksOf(answer)}
          />
        </Panel>
        <EvidenceLines detail={answer} />
      </div>
      <aside>
        <PlanPanel
          detail={answer}
          version={`${version} ${hub.heard?.slice(0, 18)}`}
          done={done}
          takes={param(address, "plan") === "1"}
        />
        <BlastPanel detail={answer} price={hub.status?.dollars_per_gpu_hour ?? 0} />
        <BeforePanel incident={incident} />
        <NotificationsPanel id={id} version={`${version} ${answer.timeline.length}`} />
        <Notes detail={answer} done={done} takes={param(address, "note") === "1"} docs={hub.status?.docs_url ?? null} />
      </aside>
    </main>
  );
}

/** How much of the time before is shown; in steps, so that a line that grows is not asked for anew each time. */
const before = (lasted: number) => (lasted < 7200e3 ? 600e3 : lasted < 86400e3 ? 3600e3 : 21600e3);

const stamp = (c: Card) => `${c.state} ${c.signals} ${c.confidence} ${c.next_step} ${c.assignee} ${c.silenced_by?.id}`;

/** The impact and its cost, in one sentence. */
function impact({ incident, blast }: Detail): string {
  if (!blast?.hits.length)
    return incident.workloads.length ? `Impact: ${incident.workloads.map(workloadName).join(", ")}.` : "";
  const [first] = blast.hits;
  const rest = blast.hits.length - 1;
  const name = `${workloadName(first.workload)}${first.gpus == null ? "" : ` (${many(first.gpus, "GPU")})`}`;
  const all = rest ? `${name} and ${many(rest, "more workload")}` : name;
  return `Impact: ${all}, about ${dollars(blast.dollars_per_hour)} / h.`;
}

/** What the lines show anyway, or what is no deed. */
const SILENT = ["opened", "joined", "ended", "diagnosis", "plan", "planned", "note"];

/** A repair's entry says which state it came to: cordoning, draining, done. */
const deed = (e: Detail["timeline"][number]) =>
  words(e.kind === "repair" ? String((e.body as { state?: string } | null)?.state ?? e.kind) : e.kind);

function marksOf({ incident, timeline }: Detail): Mark[] {
  const deeds = timeline
    .map((e) => ({ at: e.at, label: deed(e) }))
    .filter((e) => !SILENT.includes(e.label))
    .slice(0, 12)
    .map((e) => ({
      ...e,
      tone: /resolved|done/.test(e.label) ? "ok" : /failed|refused|rolled/.test(e.label) ? "warn" : "accent",
    }));
  const ends =
    incident.resolved_at && !deeds.some((d) => d.label === "resolved")
      ? [{ at: incident.resolved_at, label: "resolved", tone: "ok" }]
      : [];
  return [...memberMarks(incident.members), ...deeds, ...ends];
}

const SHOWN = 12;

function Notes({
  detail: { timeline, incident, runbook },
  done,
  takes,
  docs,
}: {
  detail: Detail;
  done: () => void;
  takes: boolean;
  docs: string | null;
}) {
  const [all, showAll] = useState(false);
  const earlier = all ? 0 : Math.max(0, timeline.length - SHOWN);
  const send = async (event: Event) => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const text = new FormData(form).get("text");
    try {
      await ask(`/api/incidents/${incident.id}/note`, "POST", { text });
      form.reset();
      done();
    } catch (problem) {
      set({ notice: (problem as Error).message });
    }
  };
  const book =
    runbook &&
    (docs ? (
      <a
        href={`${docs.replace(/\/$/, "")}/${runbook.replace(/^docs\//, "")}`}
        target="_blank"
        rel="noreferrer"
        data-testid="runbook"
      >
        {words(incident.cause)}
      </a>
    ) : (
      <code data-testid="runbook">{runbook}</code>
    ));
  return (
    <Panel title="Log and notes" hint="actions of the hub and of users" id="notes-panel">
      {book && <p class="small runbook">Runbook: {book}</p>}
      {earlier > 0 && (
        <button type="button" class="plain" data-testid="earlier" onClick={() => showAll(true)}>
          Show {earlier} earlier
        </button>
      )}
      <ol class="journal">
        {timeline.slice(earlier).map((e, i) => (
          <li key={i}>
            <Time at={e.at} /> <b>{e.actor}</b> {e.kind === "repair" ? `repair: ${deed(e)}` : entryName(e.kind)}
            {tell(e.body) && <p>{tell(e.body)}</p>}
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
          ref={takes ? focus : undefined}
        />
        <button type="submit">Add note</button>
      </form>
      <p class="keys">
        <kbd>a</kbd> acknowledge <kbd>n</kbd> note <kbd>e</kbd> export
      </p>
    </Panel>
  );
}

export function tell(body: unknown): string {
  if (typeof body === "string") return body;
  const fields = body as Record<string, unknown> | null;
  return String(fields?.text ?? fields?.why ?? "");
}
