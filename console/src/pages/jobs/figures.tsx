// The jobs in figures.

import { Tile } from "../../components/parts";
import { count, many, percentOf } from "../../lib/format";
import { withParams } from "../../lib/router";
import { behind, type JobLine, ORDER, STATE, STUCK, type Straggler, TROUBLE } from "./labels";

export function Figures({ jobs, address }: { jobs: JobLine[]; address: URL }) {
  const held = jobs.filter((j) => j.state !== "pending");
  const gpus = held.reduce((sum, j) => sum + j.gpus, 0);
  const known = held.filter((j) => j.used != null && j.gpus);
  const used = known.reduce((sum, j) => sum + j.used! * j.gpus, 0);
  const base = known.reduce((sum, j) => sum + j.gpus, 0);
  const bad = jobs.filter((j) => TROUBLE.includes(j.state));
  const good = jobs.filter((j) => j.goodput != null);
  const stragglers = jobs.flatMap((j) => j.straggler ?? []);
  const goodGpus = good.reduce((s, j) => s + j.gpus, 0);
  const goodput = goodGpus ? good.reduce((s, j) => s + j.goodput! * j.gpus, 0) / goodGpus : null;
  const by = ORDER.filter((s) => TROUBLE.includes(s))
    .map((s) => [s, bad.filter((j) => j.state === s).length] as const)
    .filter(([, n]) => n);
  // Before the first measurement the number of problems is unknown.
  const isBlind = base === 0 && good.length === 0;
  const noTrouble = isBlind ? "no measurements yet" : "none hung, stalled, slow or idle";
  const teams = new Set(jobs.map((j) => j.team).filter(Boolean)).size;
  const inState = (state: string) => jobs.filter((j) => j.state === state).length;
  const countOrUnknown = (n: number) => (n === 0 && isBlind ? "unknown" : count(n));
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
        meaning={`by ${many(held.length, "job")} ${teams ? `of ${many(teams, "team")}` : "of unknown teams"}`}
      />
      <Tile
        id="tile-used"
        name="Used of allocated"
        value={percentOf(base ? used / base : null)}
        meaning={base < gpus ? `SM active, of ${count(base)} measured GPUs` : "SM active over the last hour"}
      />
      <Tile
        id="tile-trouble"
        name="Problems"
        value={countOrUnknown(bad.length)}
        tone={toneOf(bad)}
        meaning={by.length ? by.map(([s, n]) => `${n} ${s}`).join(" · ") : noTrouble}
        href={withParams(address, { state: "trouble" })}
      />
      <Tile
        id="tile-goodput"
        name="Goodput"
        value={percentOf(goodput)}
        meaning={good.length ? `of ${many(good.length, "job")} that report steps` : "no job reports steps"}
      />
      <Tile
        id="tile-stragglers"
        name="Stragglers"
        value={countOrUnknown(stragglers.length)}
        tone={stragglers.length ? "warn" : undefined}
        meaning={worst(stragglers) ?? noneBehind(jobs, isBlind)}
      />
    </section>
  );
}

function toneOf(bad: JobLine[]): string | undefined {
  if (bad.some((j) => STATE[j.state]?.tone === "critical")) return "bad";
  return bad.length ? "warn" : undefined;
}

function worst(stragglers: Straggler[]): string | undefined {
  const [last] = [...stragglers].sort((a, b) => (b.score ?? Infinity) - (a.score ?? Infinity));
  return last && `worst: ${behind(last)}`;
}

function noneBehind(jobs: JobLine[], isBlind: boolean): string {
  if (isBlind) return "no measurements yet";
  if (jobs.some((j) => STUCK.includes(j.state))) return "no slow rank in running jobs";
  return "no slow rank";
}
