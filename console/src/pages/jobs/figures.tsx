// Summary tiles of the jobs.

import { Tile } from "../../components/parts";
import { count, percentOf, plural } from "../../lib/format";
import { withParams } from "../../lib/router";
import {
  describeSlowness,
  type JobLine,
  type JobsAnswer,
  PROBLEM_STATES,
  STATE,
  STATE_ORDER,
  STUCK_STATES,
  type Straggler,
} from "./labels";

export function JobFigures({ list, address }: { list: JobsAnswer; address: URL }) {
  const { jobs, gpus } = list;
  const inState = (state: string) => list.states[state] ?? 0;
  const started = jobs.filter((j) => j.state !== "pending");
  const measured = started.filter((j) => j.used != null && j.gpus);
  const used = measured.reduce((sum, j) => sum + j.used! * j.gpus, 0);
  const measuredGpus = measured.reduce((sum, j) => sum + j.gpus, 0);
  const jobsWithProblems = jobs.filter((j) => PROBLEM_STATES.includes(j.state));
  const jobsWithGoodput = jobs.filter((j) => j.goodput != null);
  const stragglers = jobs.flatMap((j) => (j.straggler?.is_gone ? [] : (j.straggler ?? [])));
  const goodGpus = jobsWithGoodput.reduce((s, j) => s + j.gpus, 0);
  const goodput = goodGpus ? jobsWithGoodput.reduce((s, j) => s + j.goodput! * j.gpus, 0) / goodGpus : null;
  const problemCounts = STATE_ORDER.filter((s) => PROBLEM_STATES.includes(s))
    .map((s) => [s, inState(s)] as const)
    .filter(([, n]) => n);
  // Before the first measurement the number of problems is unknown.
  const isUnmeasured = measuredGpus === 0 && jobsWithGoodput.length === 0;
  const startedCount = list.total - (list.states.pending ?? 0);
  // The list has the jobs with problems first, then those with the most GPUs.
  const ofFirst = jobs.length < list.total ? `, of the first ${count(jobs.length)} jobs` : "";
  const noProblemText = isUnmeasured ? "no measurements yet" : "none hung, stalled, slow or idle";
  const teams = new Set(jobs.map((j) => j.team).filter(Boolean)).size;
  const teamText = teams ? `${ofFirst ? "at least " : ""}${plural(teams, "team")}` : "unknown teams";
  const jobGpus = started.reduce((sum, j) => sum + j.gpus, 0);
  const countOrUnknown = (n: number) => (n === 0 && isUnmeasured ? "unknown" : count(n));
  return (
    <section class="tiles even" aria-label="summary of jobs">
      <Tile
        id="tile-jobs"
        name="Jobs"
        value={count(list.total)}
        meaning={`${count(inState("running"))} running · ${count(inState("pending"))} pending`}
      />
      <Tile
        id="tile-held"
        name="GPUs allocated"
        value={gpus.unknown && !gpus.allocated ? "unknown" : count(gpus.allocated)}
        meaning={[
          `by ${plural(startedCount, "job")} of ${teamText}`,
          gpus.not_reporting + gpus.down ? `${count(gpus.not_reporting + gpus.down)} not reporting` : "",
        ]
          .filter(Boolean)
          .join(" · ")}
      />
      <Tile
        id="tile-used"
        name="Used share"
        value={percentOf(measuredGpus ? used / measuredGpus : null)}
        meaning={
          (measuredGpus < jobGpus
            ? `SM active, of ${count(measuredGpus)} measured GPUs`
            : "SM active over the last hour") + ofFirst
        }
      />
      <Tile
        id="tile-trouble"
        name="Problems"
        value={countOrUnknown(problemCounts.reduce((sum, [, n]) => sum + n, 0))}
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
            ? `of ${plural(jobsWithGoodput.length, "job")} that report steps${ofFirst}`
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
