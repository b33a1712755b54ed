// Working on one incident: whom it hits, who has it, who is told and who is not, and the report to hand over.

import { useState } from "preact/hooks";
import pack from "../../../watchkeeper/packs/console/incident.json";
import { Chip, Empty, Facts, focus, Panel, Problem, Since, Skeleton, Time } from "../components/parts";
import { acknowledge, ask, useAsk } from "../lib/api";
import { ago, clock, count, dollars, many, utc, words, workloadName } from "../lib/format";
import type { History } from "../lib/marks";
import { fill, jobOf, quoted } from "../lib/promql";
import { to } from "../lib/router";
import { now, set } from "../lib/store";
import type { Blast, Card, Detail, Incident, Notice, Silenced } from "../types";

const SPANS = [
  ["1h", "1 hour"],
  ["4h", "4 hours"],
  ["1d", "1 day"],
];
type Deed = "assign" | "silence" | "resolve" | null;

/** Send one change; the page is asked anew by `done`, and a refusal is said in words. */
async function send(path: string, body: unknown, told: string, done: () => void, method = "POST"): Promise<boolean> {
  try {
    await ask(path, method, body);
    set({ notice: told });
    done();
    return true;
  } catch (problem) {
    set({ notice: (problem as Error).message });
    return false;
  }
}
const field = (event: Event, name: string) =>
  String(new FormData(event.currentTarget as HTMLFormElement).get(name) ?? "").trim();

/** Who has it, and everything a person may do with it: one line below the title. */
export function WorkLine({ detail: { incident, silenced_by }, done }: { detail: Detail; done: () => void }) {
  const [asking, askFor] = useState<Deed>(null);
  const path = `/api/incidents/${incident.id}`;
  const open = incident.state !== "resolved";
  const submit = (told: string, verb: string, body: (event: Event) => unknown) => async (event: Event) => {
    event.preventDefault();
    if (await send(`${path}/${verb}`, body(event), told, done)) askFor(null);
  };
  const toggle = (deed: Deed) => () => askFor(asking === deed ? null : deed);
  return (
    <div class="work" data-testid="work-panel">
      {silenced_by && <SilencedLine silence={silenced_by} done={done} />}
      <div class="buttons first">
        <span class="who">
          {incident.assignee ? `with ${incident.assignee}` : open ? "nobody has it yet" : "nobody had it"}
        </span>
        {incident.state === "open" && (
          <button
            type="button"
            class="primary"
            data-testid="acknowledge"
            onClick={() => acknowledge(incident.id).then(done)}
          >
            Acknowledge
          </button>
        )}
        {open && (
          <button type="button" data-testid="assign" aria-expanded={asking === "assign"} onClick={toggle("assign")}>
            Assign
          </button>
        )}
        {open && !silenced_by && (
          <button type="button" data-testid="silence" aria-expanded={asking === "silence"} onClick={toggle("silence")}>
            Silence
          </button>
        )}
        {open && (
          <button type="button" data-testid="resolve" aria-expanded={asking === "resolve"} onClick={toggle("resolve")}>
            Resolve
          </button>
        )}
        <a class="button" data-testid="export" data-export download={`${incident.id}.md`} href={`${path}/report`}>
          Report
        </a>
        <a
          class="button"
          data-testid="export-json"
          download={`${incident.id}.json`}
          href={`${path}/report?format=json`}
        >
          JSON
        </a>
      </div>
      {asking === "assign" && (
        <form onSubmit={submit(`${incident.id} was assigned`, "assign", (e) => ({ to: field(e, "to") }))}>
          <input
            name="to"
            required
            maxLength={200}
            placeholder="Who takes it?"
            aria-label="Who takes it"
            defaultValue={incident.assignee ?? ""}
            data-testid="assign-to"
            ref={focus}
          />
          <button type="submit" class="primary">
            Assign
          </button>
        </form>
      )}
      {asking === "silence" && (
        <form
          class="tall"
          onSubmit={submit(`${incident.place_name} is silenced`, "silence", (e) => ({
            for: field(e, "for"),
            reason: field(e, "reason"),
          }))}
        >
          <p class="dim small">
            Nobody is told about anything at {incident.place_name}. It is still watched and shown.
          </p>
          <div class="row">
            <select name="for" aria-label="How long" data-testid="silence-for">
              {SPANS.map(([value, text]) => (
                <option key={value} value={value}>
                  {text}
                </option>
              ))}
            </select>
            <input
              name="reason"
              required
              maxLength={1000}
              placeholder="Why? Everybody can read it"
              aria-label="Why"
              data-testid="silence-reason"
              ref={focus}
            />
            <button type="submit" class="primary">
              Silence
            </button>
          </div>
        </form>
      )}
      {asking === "resolve" && (
        <form onSubmit={submit(`${incident.id} was resolved`, "resolve", (e) => ({ why: field(e, "why") }))}>
          <input
            name="why"
            required
            maxLength={4000}
            placeholder="What ended it?"
            aria-label="What ended it"
            ref={focus}
          />
          <button type="submit" class="primary">
            Resolve
          </button>
        </form>
      )}
    </div>
  );
}

function SilencedLine({ silence, done }: { silence: Silenced; done: () => void }) {
  const end = () =>
    send(`/api/silences/${encodeURIComponent(silence.id)}`, undefined, "The silence was ended", done, "DELETE");
  return (
    <p class="silenced" data-testid="silenced">
      <b>Silenced</b> by {silence.author} until <Time at={silence.ends_at} full /> (
      {ago(Date.parse(silence.ends_at) - now())} more): {silence.reason}
      <button type="button" class="plain" data-testid="unsilence" onClick={end}>
        End it now
      </button>
    </p>
  );
}
export const SilencedChip = ({ silence }: { silence: Silenced | null | undefined }) =>
  silence ? (
    <Chip tone="warning" title={`by ${silence.author} until ${utc(silence.ends_at)}: ${silence.reason}`}>
      silenced {ago(Date.parse(silence.ends_at) - now())}
    </Chip>
  ) : null;

const query = (expr: string, at: number) =>
  `/api/v1/query?${new URLSearchParams({ query: expr, time: String(at / 1000) })}`;
interface Vector {
  data: { result: { metric: Record<string, string>; value: [number, string] }[] };
}
const number = (answer?: Vector) => {
  const text = answer?.data.result[0]?.value[1];
  return text == null || text === "NaN" ? null : Number(text);
};

export function BlastPanel({ detail: { incident, blast }, price }: { detail: Detail; price: number }) {
  const places = new Set(incident.members.map((m) => m.place.gpu ?? m.place.node)).size;
  const opened = Date.parse(incident.opened_at);
  const jobs = [...new Set(incident.workloads.map(jobOf))].map((name) => name.replace(/[^\w-]/g, "."));
  const { answer } = useAsk<Vector>(
    jobs.length
      ? query(fill(pack.last_checkpoint, { jobs: quoted(jobs.join("|")), opened_at: opened / 1000 }), opened)
      : "",
  );
  const saved = number(answer);
  const [, kind, name] = /^(\w+)=(.+)$/.exec(incident.place.domain ?? "") ?? [];
  const there = incident.place.gpu
    ? to.gpu(incident.place.gpu)
    : incident.place.node
      ? to.node(incident.place.node)
      : ["job", "pod", "hpc_job"].includes(kind)
        ? to.job(name)
        : ["rack", "leaf", "nvlink", "pool"].includes(kind)
          ? to.fleet(`${kind}:${name}`)
          : "";
  // A model or a job of which nobody tells where it runs: no GPU is not what it has.
  const known = blast && (blast.gpus > 0 || blast.hits.length > 0 || incident.place.node);
  return (
    <Panel
      title="Blast radius"
      hint={known ? `${dollars(blast.dollars_per_hour)} an hour` : "unknown"}
      id="blast-panel"
    >
      {!blast && <Problem>Whom it hits is unknown: the engine did not answer.</Problem>}
      <Facts
        rows={[
          [
            "Place",
            there ? (
              <a href={there} data-testid="place">
                {incident.place_name}
              </a>
            ) : (
              incident.place_name
            ),
          ],
          [
            "GPUs",
            blast && !known
              ? "unknown: nobody says on which GPUs it runs"
              : blast && (
                  <>
                    {many(blast.gpus, "GPU")}
                    {blast.broken_gpus > 0 && blast.gpus > blast.broken_gpus && (
                      <small>{count(blast.broken_gpus)} broken; the others wait for them</small>
                    )}
                  </>
                ),
          ],
          ["Workloads", blast ? <Hits blast={blast} /> : incident.workloads.join(", ") || "none known"],
          ["Teams", blast && (blast.teams.join(", ") || "none known")],
          [
            "Last checkpoint",
            saved && (
              <>
                {clock(saved * 1000)} · {ago(opened - saved * 1000)} of work lost
              </>
            ),
          ],
          [
            "Cost",
            known && (
              <>
                {dollars(blast.dollars_per_hour)} / h · {dollars(blast.gpu_hours * price)}{" "}
                {incident.resolved_at ? "in all" : "so far"}
                <small>
                  {blast.gpu_hours.toFixed(1)} GPU-hours{incident.resolved_at ? "" : " so far"}
                </small>
              </>
            ),
          ],
          ["Signals", `${many(incident.members.length, "signal")} at ${many(places, "place")}`],
          ["Cause", words(incident.cause)],
          [
            "Part of",
            incident.part_of && (
              <a href={to.incident(incident.part_of)} data-testid="part-of">
                {incident.part_of}
              </a>
            ),
          ],
        ]}
      />
    </Panel>
  );
}

/** Whether this has happened to it before, and how it stands beside its neighbours. */
export function BeforePanel({ incident }: { incident: Incident }) {
  const { gpu, node } = incident.place;
  const at = Math.floor(Date.parse(incident.opened_at) / 1000) * 1000;
  const { answer: history } = useAsk<History>(
    node ? `/api/history?node=${encodeURIComponent(node)}${gpu ? `&gpu=${encodeURIComponent(gpu)}` : ""}` : "",
    incident.state,
  );
  const { answer: known } = useAsk<{ incidents: Card[]; labels: Record<string, string> | null }>(
    gpu ? `/api/gpu/${encodeURIComponent(gpu)}` : "",
  );
  const { answer: own } = useAsk<Vector>(gpu ? query(fill(pack.replays, { gpu: quoted(gpu) }), at) : "");
  const { answer: peers } = useAsk<Vector>(
    gpu && node ? query(fill(pack.replays_of_peers, { node: quoted(node) }), at) : "",
  );
  if (!node) return null;
  const before = known?.incidents.filter((c) => c.id !== incident.id && c.opened_at < incident.opened_at);
  const again = before?.filter((c) => c.cause === incident.cause).length ?? 0;
  const seen = history?.counts.filter((c) => c.kind.endsWith("xid")).slice(0, 5);
  return (
    <Panel
      title={gpu ? "This GPU before" : "This node before"}
      hint={history && `${history.days} days`}
      id="before-panel"
    >
      {!history ? (
        <Skeleton lines={3} />
      ) : (
        <Facts
          rows={[
            ["Serial", known?.labels?.DCGM_FI_DEV_SERIAL],
            [
              "Xid",
              seen?.length
                ? seen.map((c) => (
                    <div key={`${c.kind}${c.code}`}>
                      {c.code} ×{count(c.events)}{" "}
                      <span class="dim">
                        {c.meaning} · <Since at={c.newest} />
                      </span>
                    </div>
                  ))
                : "none",
            ],
            [
              "PCIe replays",
              number(own) == null
                ? null
                : `${count(number(own))}${number(peers) == null ? "" : `, peers' median ${count(number(peers))}`}`,
            ],
            [
              "Incidents",
              before &&
                (before.length
                  ? before.slice(0, 4).map((c) => (
                      <a key={c.id} href={to.incident(c.id)}>
                        {c.id}{" "}
                      </a>
                    ))
                  : "none"),
            ],
            [
              "Verdict",
              gpu &&
                before &&
                (again
                  ? `${again + 1} times with this cause: hand it over if validation fails`
                  : "the first time with this cause"),
            ],
          ]}
        />
      )}
    </Panel>
  );
}
function Hits({ blast }: { blast: Blast }) {
  const [all, showAll] = useState(false);
  const shown = all ? blast.hits : blast.hits.slice(0, 5);
  const rest = blast.hits.length - shown.length;
  if (!blast.hits.length) return <>none known</>;
  return (
    <>
      {shown.map((h) => (
        <div key={h.workload} data-testid="hit">
          <a href={to.job(h.workload)}>{workloadName(h.workload)}</a>{" "}
          <span class="dim">{h.gpus == null ? "GPUs unknown" : many(h.gpus, "GPU")}</span>
        </div>
      ))}
      {rest > 0 && (
        <button type="button" class="plain" onClick={() => showAll(true)}>
          {rest} more
        </button>
      )}
    </>
  );
}

const STATE: Record<Notice["state"], string> = {
  waiting: "waits",
  sending: "is being told",
  sent: "told",
  given_up: "not told",
};
export function ToldPanel({ id, version }: { id: string; version: unknown }) {
  const { answer, problem } = useAsk<{ notices: Notice[] }>(
    `/api/incidents/${encodeURIComponent(id)}/notices`,
    version,
  );
  const told = answer?.notices;
  return (
    <Panel title="Who was told" hint={told && many(told.length, "message")} id="told-panel">
      {problem && <Problem>{problem.message}</Problem>}
      {!told ? (
        !problem && <Skeleton lines={2} />
      ) : told.length === 0 ? (
        <Empty title="Nobody">
          No message was due. Receivers are named under <code>[notify] via</code>.
        </Empty>
      ) : (
        <ol class="journal">
          {told.map((n) => (
            <li key={n.id} data-testid="notice-row" data-state={n.state}>
              <Time at={n.sent_at ?? n.due_at} /> <b>{n.receiver}</b> {STATE[n.state]}: {words(n.occasion)}
              {(n.answer || n.tries > 1) && (
                <p class="dim">{[n.tries > 1 && `${n.tries} tries`, n.answer].filter(Boolean).join(", ")}</p>
              )}
            </li>
          ))}
        </ol>
      )}
    </Panel>
  );
}
