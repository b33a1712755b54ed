// Summary tiles of the jobs.

import { Tile } from "../../components/parts";
import { count, percentOf, plural } from "../../lib/format";
import { withParams } from "../../lib/router";
import {
  describeSlowness,
  type JobLine,
  PROBLEM_STATES,
  STATE,
  STATE_ORDER,
  STUCK_STATES,
  type Straggler,
} from "./labels";

export function JobFigures({ jobs, address }: { jobs: JobLine[]; address: URL }) {
  const started = jobs.filter((j) => j.state !== "pending");
  const gpus = started.reduce((sum, j) => sum + j.gpus, 0);
  const measured = started.filter((j) => j.used != null && j.gpus);
  const used = measured.reduce((sum, j) => sum + j.used! * j.gpus, 0);
  const measuredGpus = measured.reduce((sum, j) => sum + j.gpus, 0);
  const jobsWithProblems = jobs.filter((j) => PROBLEM_STATES.includes(j.state));
  const jobsWithGoodput = jobs.filter((j) => j.goodput != null);
  const stragglers = jobs.flatMap((j) => (j.straggler?.is_gone ? [] : (j.straggler ?? [])));
  const goodGpus = jobsWithGoodput.reduce((s, j) => s + j.gpus, 0);
  const goodput = goodGpus ? jobsWithGoodput.reduce((s, j) => s + j.goodput! * j.gpus, 0) / goodGpus : null;
  const problemCounts = STATE_ORDER.filter((s) => PROBLEM_STATES.includes(s))
    .map((s) => [s, jobsWithProblems.filter((j) => j.state === s).length] as const)
    .filter(([, n]) => n);
  // Before the first measurement the number of problems is unknown.
  const isUnmeasured = measuredGpus === 0 && jobsWithGoodput.length === 0;
  const noProblemText = isUnmeasured ? "no measurements yet" : "none hung, stalled, slow or idle";
  const teams = new Set(jobs.map((j) => j.team).filter(Boolean)).size;
  const inState = (state: string) => jobs.filter((j) => j.state === state).length;
  const countOrUnknown = (n: number) => (n === 0 && isUnmeasured ? "unknown" : count(n));
  return (
    <section class="tiles even" aria-label="summary of jobs">
      <Tile
        id="tile-jobs"
        name="Jobs"
        value={count(jobs.length)}
        meaning={`${count(inState("running"))} running · ${count(inState("pending"))} pending`}
      />
      <Tile
        id="tile-held"
        name="GPUs allocated"
        value={count(gpus)}
        meaning={`by ${plural(started.length, "job")} ${teams ? `of ${plural(teams, "team")}` : "of unknown teams"}`}
      />
      <Tile
        id="tile-used"
        name="Used share"
        value={percentOf(measuredGpus ? used / measuredGpus : null)}
        meaning={
          measuredGpus < gpus ? `SM active, of ${count(measuredGpus)} measured GPUs` : "SM active over the last hour"
        }
      />
      <Tile
        id="tile-trouble"
        name="Problems"
        value={countOrUnknown(jobsWithProblems.length)}
        tone={problemTone(jobsWithProblems)}
        meaning={problemCounts.length ? problemCounts.map(([s, n]) => `${n} ${s}`).join(" · ") : noProblemText}
        href={withParams(address, { state: "trouble" })}
      />
      <Tile
        id="tile-goodput"
        name="Goodput, last hour"
        value={percentOf(goodput)}
        meaning={
          jobsWithGoodput.length
            ? `of ${plural(jobsWithGoodput.length, "job")} that report steps`
            : "no job reports steps"
        }
      />
      <Tile
        id="tile-stragglers"
        name="Stragglers"
        value={countOrUnknown(stragglers.length)}
        tone={stragglers.length ? "warn" : undefined}
        meaning={worstStraggler(stragglers) ?? noStragglerText(jobs, isUnmeasured)}
      />
    </section>
  );
}

function problemTone(bad: JobLine[]): string | undefined {
  if (bad.some((j) => STATE[j.state]?.tone === "critical")) return "bad";
  return bad.length ? "warn" : undefined;
}

function worstStraggler(stragglers: Straggler[]): string | undefined {
  const [last] = [...stragglers].sort((a, b) => (b.score ?? Infinity) - (a.score ?? Infinity));
  return last && `worst: ${describeSlowness(last)}`;
}

function noStragglerText(jobs: JobLine[], isUnmeasured: boolean): string {
  if (isUnmeasured) return "no measurements yet";
  if (jobs.some((j) => STUCK_STATES.includes(j.state))) return "no slow rank in running jobs";
  return "no slow rank";
}
