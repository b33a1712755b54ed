// Drills: inject a fault into a simulated fleet and compare the diagnosis with the expected one; and the accuracy of
// each cause, in drills and as rated by users.

import { useState } from "preact/hooks";
import { Chip, Empty, MarkedText, Panel, Problem, Skeleton, Tile, Time } from "../../components/parts";
import { type Column, Table } from "../../components/table";
import { request, useRequest } from "../../lib/api";
import { count, humanise, percent, plural, shortDuration } from "../../lib/format";
import { type PageProps, param, setParam, to } from "../../lib/router";
import { now, setState, useHub, usePulse } from "../../lib/store";
import type { Severity } from "../../lib/types";
import "../../styles/pages.css";
import { Accuracy } from "./accuracy";
import { Inject, type Scenario } from "./inject";

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

export interface Drill {
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
          <Empty title="This is a real fleet">
            You can inject faults only into a simulated fleet. Start one with <code>watchkeeper up</code>, or score
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
  const [changeCount, setChangeCount] = useState(0);
  const { open } = useHub();
  const incidentVersion = open?.map((c) => `${c.id}${c.cause}${c.state}`).join() ?? "";
  const { answer, problem } = useRequest<Answer>("/api/drills", `${beat} ${changeCount} ${incidentVersion}`);
  const drillVersion = answer?.drills.map((d) => `${d.id}${d.verdict.cause}${d.ended_at}`).join();
  const scenarios = useRequest<Scenario[]>("/api/sim/scenarios");
  const q = param(address, "q").toLowerCase();
  const shown = scenarios.answer?.filter(
    (s) => !q || `${s.name} ${s.title} ${s.truth.cause} ${s.truth.place} ${s.truth.severity}`.toLowerCase().includes(q),
  );
  const chosen = scenarios.answer?.find((s) => s.name === param(address, "scenario"));
  const end = async (drill: Drill) => {
    try {
      await request(`/api/sim/faults/${encodeURIComponent(drill.id)}`, "DELETE");
      setState({ notice: `${drill.scenario} on ${drill.node} ended` });
      setChangeCount((n) => n + 1);
    } catch (error) {
      setState({ notice: (error as Error).message });
    }
  };
  return (
    <main data-testid="drills-page">
      {answer && <Score score={answer.score} running={answer.drills.filter((d) => !d.ended_at).length} />}
      <div class="columns">
        <div>
          <Panel title="Running and finished" id="drills-panel" hint="injected faults and the diagnosis of each">
            <Table
              id="drills"
              caption="Drills and their diagnoses"
              rows={answer?.drills}
              problem={problem}
              rowKey={(d) => d.id}
              rowTestId="drill-row"
              address={address}
              columns={columns(end)}
              empty={
                <Empty title="No drill yet">
                  Select a fault on the right, or press <kbd>n</kbd> and type its name. The fleet is simulated.
                </Empty>
              }
            />
          </Panel>
          {chosen && <Inject scenario={chosen} done={() => setChangeCount((n) => n + 1)} key={chosen.name} />}
          <Accuracy address={address} again={`${changeCount} ${incidentVersion} ${drillVersion}`} />
        </div>
        <aside>
          <Panel
            title="Faults"
            id="scenarios-panel"
            hint={scenarios.answer && `${count(shown!.length)} of ${count(scenarios.answer.length)}`}
          >
            <input
              id="note"
              type="search"
              class="filter"
              value={param(address, "q")}
              placeholder="Xid, cause, place or text"
              aria-label="Filter faults"
              data-testid="drill-filter"
              onInput={(e) => setParam("q", e.currentTarget.value)}
            />
            {scenarios.problem && <Problem>{scenarios.problem.message}</Problem>}
            {!shown ? (
              !scenarios.problem && <Skeleton lines={8} />
            ) : (
              <ul class="scenarios">
                {shown.map((s) => (
                  <li key={s.name}>
                    <button
                      type="button"
                      class="plain"
                      aria-pressed={s === chosen}
                      data-testid={`drill-${s.name}`}
                      onClick={() => setParam("scenario", s === chosen ? null : s.name)}
                    >
                      <b>{s.title}</b>
                      <small>
                        {s.name} · {s.truth.place} · {s.truth.severity}
                      </small>
                    </button>
                  </li>
                ))}
              </ul>
            )}
            {shown?.length === 0 && <p class="dim">No fault matches.</p>}
          </Panel>
        </aside>
      </div>
    </main>
  );
}

function Score({ score, running }: { score: Answer["score"]; running: number }) {
  const missed = score.drills - score.detected;
  return (
    <section class="tiles even gap-below" aria-label="summary of drills">
      <Tile
        id="tile-drills"
        name="Drills"
        value={count(score.drills)}
        meaning={running ? `${plural(running, "fault")} running` : "none running"}
      />
      <Tile
        id="tile-found"
        name="Detected"
        value={score.drills ? percent((100 * score.detected) / score.drills) : "none yet"}
        meaning={score.drills ? (missed ? `${count(missed)} not detected yet` : "all") : "no drill yet"}
        tone={missed ? "warn" : undefined}
      />
      <Tile
        id="tile-right"
        name="Correct"
        value={score.drills ? percent((100 * score.right) / score.drills) : "none yet"}
        meaning="cause, place and severity"
      />
      <Tile
        id="tile-seconds"
        name="Time to detect"
        value={score.median_seconds == null ? "unknown" : seconds(score.median_seconds)}
        meaning={
          score.slowest_seconds == null ? "in simulated time" : `median; slowest ${seconds(score.slowest_seconds)}`
        }
      />
    </section>
  );
}

const seconds = (n: number) => (n < 90 ? `${n.toFixed(n < 10 ? 1 : 0)} s` : shortDuration(1000 * n));

const verdictMark = (right: boolean | null, text: string) => (
  <MarkedText tone={right == null ? "" : right ? "ok" : "critical"}>{text}</MarkedText>
);

export const columns = (end: (d: Drill) => void): Column<Drill>[] => [
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
            ? `lasted ${shortDuration(Date.parse(d.ended_at) - Date.parse(d.at))}`
            : `for ${shortDuration(now() - Date.parse(d.at))}`}
        </small>
      </>
    ),
  },
  {
    id: "found",
    title: "Detected",
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
            {d.verdict.resolved_at && " · resolved"}
          </small>
        </>
      ) : (
        <span class="dim">{d.ended_at ? "none" : "not detected yet"}</span>
      ),
  },
  {
    id: "verdict",
    title: "Diagnosis",
    value: (d) => (d.verdict.cause_right == null ? "" : d.verdict.cause_right ? "right" : "wrong"),
    cell: (d) =>
      d.verdict.incident ? (
        <div class="verdict">
          {verdictMark(d.verdict.cause_right, d.verdict.cause ? humanise(d.verdict.cause) : "no finding yet")}
          {d.verdict.cause_right === false && <small class="plain">expected: {humanise(d.cause)}</small>}
          {verdictMark(d.verdict.place_right, "place")}
          {verdictMark(d.verdict.severity_right, "severity")}
        </div>
      ) : (
        <span class="dim">–</span>
      ),
  },
  {
    id: "end",
    title: "",
    value: (d) => (d.ended_at ? "ended" : "running"),
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
