// Drills: put a fault into a simulated fleet, watch it being found, and see whether the answer was right; and how often the
// causes that this hub names are right, in drills and by the word of people.

import { useEffect, useRef, useState } from "preact/hooks";
import { Chip, Empty, Level, Mark, Panel, Problem, Skeleton, Tile, Time } from "../components/parts";
import { type Column, Table } from "../components/table";
import { ask, useAsk } from "../lib/api";
import { ago, count, many, percent, words } from "../lib/format";
import { type PageProps, param, put, to } from "../lib/router";
import { now, set, useHub, usePulse } from "../lib/store";
import type { Severity } from "../types";
import "../styles/pages.css";

interface Scenario {
  name: string;
  title: string;
  truth: { cause: string; action: string; severity: Severity; place: string };
}
interface Verdict {
  incident: string | null;
  title: string | null;
  detected_seconds: number | null;
  cause: string | null;
  cause_right: boolean | null;
  severity_right: boolean | null;
  place_right: boolean | null;
  resolved_at: string | null;
}
interface Drill {
  id: string;
  scenario: string;
  node: string;
  gpu: number | null;
  at: string;
  ended_at: string | null;
  cause: string;
  severity: Severity;
  scope: string;
  verdict: Verdict;
}
interface Scored {
  cause: string;
  drills: number;
  found: number;
  right: number;
  right_share: number;
  instead: string[];
}
interface Judged {
  cause: string;
  diagnosed: number;
  judged: number;
  right: number;
  right_share: number | null;
  instead: string[];
}
interface Causes {
  cause: string;
  own?: Judged;
  drill?: Scored;
}
interface Answer {
  drills: Drill[];
  score: {
    drills: number;
    detected: number;
    right: number;
    median_seconds: number | null;
    slowest_seconds: number | null;
  };
}

export function DrillsPage({ address }: PageProps) {
  const { status } = useHub();
  if (!status)
    return (
      <main class="single" data-testid="drills-page">
        <Panel>
          <Skeleton lines={6} />
        </Panel>
      </main>
    );
  if (!status.simulated)
    return (
      <main class="single" data-testid="drills-page">
        <Panel>
          <Empty title="This fleet is real">
            Faults are put only into a simulated one. Start one beside it with <code>watchkeeper up</code>, or score
            every scenario on the command line with <code>watchkeeper drill</code>.
          </Empty>
        </Panel>
        <Accuracy address={address} again={0} />
      </main>
    );
  return <Simulated address={address} />;
}

function Simulated({ address }: { address: URL }) {
  const beat = usePulse(2000);
  const [asked, again] = useState(0);
  const { open } = useHub();
  const told = open?.map((c) => `${c.id}${c.cause}${c.state}`).join() ?? "";
  const { answer, problem } = useAsk<Answer>("/api/drills", `${beat} ${asked} ${told}`);
  const known = useAsk<Scenario[]>("/api/sim/scenarios");
  const q = param(address, "q").toLowerCase();
  const shown = known.answer?.filter(
    (s) => !q || `${s.name} ${s.title} ${s.truth.cause} ${s.truth.place} ${s.truth.severity}`.toLowerCase().includes(q),
  );
  const chosen = known.answer?.find((s) => s.name === param(address, "scenario"));
  const end = async (drill: Drill) => {
    try {
      await ask(`/api/sim/faults/${encodeURIComponent(drill.id)}`, "DELETE");
      set({ notice: `${drill.scenario} on ${drill.node} ended` });
      again((n) => n + 1);
    } catch (error) {
      set({ notice: (error as Error).message });
    }
  };
  return (
    <main data-testid="drills-page">
      {answer && <Score score={answer.score} running={answer.drills.filter((d) => !d.ended_at).length} />}
      <div class="columns">
        <div>
          <Panel title="Under way and done" id="drills-panel" hint="each fault beside what the hub made of it">
            <Table
              id="drills"
              caption="Drills and their verdicts"
              rows={answer?.drills}
              problem={problem}
              rowKey={(d) => d.id}
              rowTestId="drill-row"
              address={address}
              columns={columns(end)}
              empty={
                <Empty title="Nothing is broken">
                  Choose a fault on the right, or press <kbd>n</kbd> and type its name. The fleet is simulated: nobody
                  is harmed.
                </Empty>
              }
            />
          </Panel>
          {chosen && <Inject scenario={chosen} done={() => again((n) => n + 1)} key={chosen.name} />}
          <Accuracy
            address={address}
            again={`${asked} ${told} ${answer?.drills.map((d) => `${d.id}${d.verdict.cause}${d.ended_at}`).join()}`}
          />
        </div>
        <aside>
          <Panel
            title="Faults"
            id="scenarios-panel"
            hint={known.answer && `${count(shown!.length)} of ${count(known.answer.length)}`}
          >
            <input
              id="note"
              type="search"
              class="filter"
              value={param(address, "q")}
              placeholder="Xid, cause, place or word"
              aria-label="Only faults with these words"
              data-testid="drill-filter"
              onInput={(e) => put("q", e.currentTarget.value)}
            />
            {known.problem && <Problem>{known.problem.message}</Problem>}
            {!shown ? (
              !known.problem && <Skeleton lines={8} />
            ) : (
              <ul class="scenarios">
                {shown.map((s) => (
                  <li key={s.name}>
                    <button
                      type="button"
                      class="plain"
                      aria-pressed={s === chosen}
                      data-testid={`drill-${s.name}`}
                      onClick={() => put("scenario", s === chosen ? null : s.name)}
                    >
                      <b>{s.title}</b>
                      <small>
                        {s.name} · one {s.truth.place} · {s.truth.severity}
                      </small>
                    </button>
                  </li>
                ))}
              </ul>
            )}
            {shown?.length === 0 && <p class="dim">No fault has these words.</p>}
          </Panel>
        </aside>
      </div>
    </main>
  );
}

function Score({ score, running }: { score: Answer["score"]; running: number }) {
  const missed = score.drills - score.detected;
  return (
    <section class="tiles even gap-below" aria-label="score">
      <Tile
        id="tile-drills"
        name="Drills"
        value={count(score.drills)}
        meaning={running ? `${many(running, "fault")} under way` : "none under way"}
      />
      <Tile
        id="tile-found"
        name="Found"
        value={score.drills ? percent((100 * score.detected) / score.drills) : "none yet"}
        meaning={score.drills ? (missed ? `${count(missed)} not found yet` : "all of them") : "start one to see"}
        tone={missed ? "warn" : undefined}
      />
      <Tile
        id="tile-right"
        name="Right"
        value={score.drills ? percent((100 * score.right) / score.drills) : "none yet"}
        meaning="right cause, right place, right severity"
      />
      <Tile
        id="tile-seconds"
        name="Found after"
        value={score.median_seconds == null ? "unknown" : seconds(score.median_seconds)}
        meaning={
          score.slowest_seconds == null
            ? "in the fleet's own time"
            : `median; the slowest ${seconds(score.slowest_seconds)}`
        }
      />
    </section>
  );
}
const seconds = (n: number) => (n < 90 ? `${n.toFixed(n < 10 ? 1 : 0)} s` : ago(1000 * n));

function Accuracy({ address, again }: { address: URL; again: unknown }) {
  const own = useAsk<{ accuracy: Judged[] }>("/api/accuracy", again);
  const drills = useAsk<{ drills: Scored[]; game_day_at: string | null }>("/api/drills/accuracy", again);
  const names = [...new Set([...(drills.answer?.drills ?? []), ...(own.answer?.accuracy ?? [])].map((c) => c.cause))];
  const rows =
    own.answer &&
    drills.answer &&
    names.map((cause) => ({
      cause,
      own: own.answer!.accuracy.find((c) => c.cause === cause),
      drill: drills.answer!.drills.find((c) => c.cause === cause),
    }));
  const day = drills.answer?.game_day_at;
  return (
    <Panel
      title="Right causes"
      id="accuracy-panel"
      hint={
        day ? (
          <>
            with the game day of <Time at={day} />
          </>
        ) : (
          "in drills, and where people said what it was"
        )
      }
    >
      <Table
        id="accuracy"
        caption="How often each cause was named rightly"
        rows={rows}
        problem={own.problem ?? drills.problem}
        rowKey={(r) => r.cause}
        rowTestId="accuracy-row"
        address={address}
        param="causes"
        columns={ACCURACY}
        empty={
          <Empty title="No cause was judged yet">
            Run <code>watchkeeper drill --tell</code>, or say at an incident what it was.
          </Empty>
        }
      />
    </Panel>
  );
}
const of = (right: number, all: number) =>
  all ? (
    <>
      {percent((100 * right) / all)}
      <small class="plain">
        {count(right)} of {count(all)}
      </small>
    </>
  ) : (
    <span class="dim">–</span>
  );
const ACCURACY: Column<Causes>[] = [
  { id: "cause", title: "Cause", value: (r) => r.cause, cell: (r) => <b class="strong">{words(r.cause)}</b> },
  {
    id: "drills",
    title: "Right in drills",
    numeric: true,
    value: (r) => r.drill?.right_share,
    cell: (r) => of(r.drill?.right ?? 0, r.drill?.drills ?? 0),
  },
  {
    id: "people",
    title: "Right by people's word",
    numeric: true,
    value: (r) => r.own?.right_share,
    cell: (r) => of(r.own?.right ?? 0, r.own?.judged ?? 0),
  },
  {
    id: "named",
    title: "Named",
    numeric: true,
    hint: "Incidents of this fleet with this cause",
    value: (r) => r.own?.diagnosed ?? 0,
    cell: (r) => count(r.own?.diagnosed ?? 0),
  },
  {
    id: "instead",
    title: "Was instead",
    minor: true,
    value: (r) => instead(r).join(),
    cell: (r) => instead(r).map(words).join(", ") || <span class="dim">–</span>,
  },
];
const instead = (r: Causes) => [...new Set([...(r.drill?.instead ?? []), ...(r.own?.instead ?? [])])];

function Inject({ scenario, done }: { scenario: Scenario; done: () => void }) {
  const { fleet } = useHub();
  const [busy, work] = useState(false);
  const [problem, say] = useState("");
  const panel = useRef<HTMLFormElement>(null);
  useEffect(() => panel.current?.scrollIntoView({ block: "nearest" }), []);
  const send = async (event: Event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const node = String(form.get("node") ?? "").trim();
    const gpu = String(form.get("gpu") ?? "");
    work(true);
    say("");
    try {
      const fault = await ask<{ node: string; gpu: number | null }>("/api/sim/faults", "POST", {
        scenario: scenario.name,
        ...(node && { node }),
        ...(gpu && { gpu: Number(gpu) }),
      });
      set({ notice: `Drill ${scenario.name} started on ${fault.node}${fault.gpu == null ? "" : ` GPU ${fault.gpu}`}` });
      done();
    } catch (error) {
      say((error as Error).message);
    }
    work(false);
  };
  return (
    <Panel
      title={scenario.title}
      id="inject-panel"
      hint={scenario.name}
      side={<Level severity={scenario.truth.severity} />}
    >
      <p class="dim">
        The right answer is <b>{words(scenario.truth.cause)}</b> at one {scenario.truth.place}, and the right first step
        is to {words(scenario.truth.action)}.
      </p>
      <form class="inject" ref={panel} onSubmit={send}>
        <label>
          Node <input name="node" list="nodes" placeholder="any" aria-label="Node" autocomplete="off" />
        </label>
        <datalist id="nodes">
          {fleet?.nodes.slice(0, 500).map((n) => (
            <option key={n.name} value={n.name} />
          ))}
        </datalist>
        {scenario.truth.place === "gpu" && (
          <label>
            GPU <input name="gpu" type="number" class="number" min={0} max={15} placeholder="any" aria-label="GPU" />
          </label>
        )}
        <button type="submit" class="primary" disabled={busy} data-testid="inject">
          {busy ? "Breaking…" : "Break it"}
        </button>
      </form>
      {problem && <Problem>{problem}</Problem>}
    </Panel>
  );
}

const verdict = (right: boolean | null, text: string) => (
  <Mark tone={right == null ? "" : right ? "ok" : "critical"}>{text}</Mark>
);
const columns = (end: (d: Drill) => void): Column<Drill>[] => [
  {
    id: "scenario",
    title: "Fault",
    value: (d) => d.scenario,
    cell: (d) => (
      <>
        <b class="strong">{d.scenario}</b>
        <small class="plain">{d.gpu != null && d.scope === "gpu" ? `GPU ${d.gpu} on ${d.node}` : d.node}</small>
      </>
    ),
  },
  {
    id: "at",
    title: "Since",
    class: "wide-only",
    value: (d) => d.at,
    cell: (d) => (
      <>
        <Time at={d.at} />
        <small class="plain">
          {d.ended_at
            ? `lasted ${ago(Date.parse(d.ended_at) - Date.parse(d.at))}`
            : `for ${ago(now() - Date.parse(d.at))}`}
        </small>
      </>
    ),
  },
  {
    id: "found",
    title: "Found",
    numeric: true,
    class: "wide-only",
    value: (d) => d.verdict.detected_seconds,
    cell: (d) =>
      d.verdict.detected_seconds == null ? (
        <span class="dim">{d.ended_at ? "never" : "not yet"}</span>
      ) : (
        <>after {seconds(d.verdict.detected_seconds)}</>
      ),
  },
  {
    id: "incident",
    title: "Incident",
    class: "words-cell",
    value: (d) => d.verdict.title ?? "",
    cell: (d) =>
      d.verdict.incident ? (
        <>
          <a href={to.incident(d.verdict.incident)} data-testid="drill-incident">
            {d.verdict.title}
          </a>
          <small class="plain">
            {d.verdict.incident}
            {d.verdict.resolved_at && " · closed"}
          </small>
        </>
      ) : (
        <span class="dim">{d.ended_at ? "none" : "watching…"}</span>
      ),
  },
  {
    id: "verdict",
    title: "Answer",
    value: (d) => (d.verdict.cause_right == null ? "" : d.verdict.cause_right ? "right" : "wrong"),
    cell: (d) =>
      d.verdict.incident ? (
        <div class="verdict">
          {verdict(d.verdict.cause_right, d.verdict.cause ? words(d.verdict.cause) : "cause not known yet")}
          {d.verdict.cause_right === false && <small class="plain">right is {words(d.cause)}</small>}
          {verdict(d.verdict.place_right, "place")}
          {verdict(d.verdict.severity_right, "severity")}
        </div>
      ) : (
        <span class="dim">–</span>
      ),
  },
  {
    id: "end",
    title: "",
    value: (d) => (d.ended_at ? "ended" : "under way"),
    cell: (d) =>
      d.ended_at ? (
        <Chip>ended</Chip>
      ) : (
        <button type="button" data-testid="end-drill" onClick={() => end(d)}>
          End
        </button>
      ),
  },
];
