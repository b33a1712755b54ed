// Jobs: state, GPUs and their use, bottleneck, goodput and stragglers.

import { useMemo } from "preact/hooks";
import { Choice, Empty, Mark, Panel, Time } from "../../components/parts";
import { type Column, Table } from "../../components/table";
import { useAsk } from "../../lib/api";
import { count, countOf, day, many, money, percentOf } from "../../lib/format";
import { type PageProps, param, put, to } from "../../lib/router";
import { usePulse } from "../../lib/store";
import "../../styles/pages.css";
import { Figures } from "./figures";
import { OneJob } from "./job";
import {
  BOUND,
  behind,
  dim,
  hours,
  type JobLine,
  kindName,
  ORDER,
  STATE,
  STUCK,
  stragglerPlace,
  TROUBLE,
} from "./labels";

export function JobsPage({ address, theme, id }: PageProps) {
  return id ? <OneJob id={id} theme={theme} address={address} key={id} /> : <List address={address} />;
}

function List({ address }: { address: URL }) {
  const beat = usePulse();
  const { answer, problem } = useAsk<{ jobs: JobLine[]; total: number; problems: string[] }>(
    "/api/jobs?limit=1000",
    beat,
  );
  const q = param(address, "q").toLowerCase();
  const only = param(address, "state", "all");
  const jobs = answer?.jobs;
  const fits = (j: JobLine) =>
    (only === "all" || (only === "trouble" ? TROUBLE.includes(j.state) : j.state === only)) &&
    (!q ||
      `${j.id} ${j.name} ${j.namespace} ${j.user} ${j.team} ${j.state} ${BOUND[j.bound_by]}`.toLowerCase().includes(q));
  const shown = useMemo(() => jobs?.filter(fits), [jobs, q, only]);
  return (
    <main class="single stack" data-testid="jobs-page">
      {jobs && jobs.length > 0 && <Figures jobs={jobs} address={address} />}
      <Panel
        title="Jobs"
        id="jobs-panel"
        hint={shown && jobs && `${countOf(shown.length, jobs.length)} · problems first`}
        side={
          <div class="pick">
            <input
              id="filter"
              class="narrow"
              type="search"
              value={param(address, "q")}
              placeholder="Name, user, team or state"
              aria-label="Filter jobs"
              data-testid="jobs-filter"
              onInput={(e) => put("q", e.currentTarget.value)}
            />
            <Choice
              label="which jobs"
              id="jobs-state"
              options={[
                ["all", "All"],
                ["trouble", "Problems"],
                ["running", "Running"],
                ["pending", "Pending"],
              ]}
              value={only}
              choose={(s) => put("state", s === "all" ? null : s)}
            />
          </div>
        }
      >
        {answer && answer.problems.length > 0 && <p class="silenced">▲ Incomplete: {answer.problems.join("; ")}</p>}
        <Table
          id="jobs"
          caption="Jobs, problems first"
          rows={shown}
          problem={problem}
          rowKey={(j) => j.id}
          rowTestId="job-row"
          href={(j) => to.job(j.id)}
          address={address}
          sort="state"
          most={150}
          columns={COLUMNS}
          empty={
            jobs?.length ? (
              <Empty title="No job matches">Change the filter.</Empty>
            ) : (
              <Empty title="No job has a GPU">
                A job appears when a scheduler, the kubelet or a program reports that it holds a GPU.
              </Empty>
            )
          }
        />
      </Panel>
    </main>
  );
}

/** A figure so far, and on hover since when; a job that began before this hub saw it has cost more. */
const Counted = (p: { job: JobLine; children: string }) => (
  <span class={p.children === "unknown" ? "dim" : undefined} title={since(p.job)}>
    {p.children}
  </span>
);

function since({ counted_since, started_at }: JobLine): string | undefined {
  if (!counted_since) return undefined;
  const seen = started_at ? "" : ", when this hub first saw the job; it may have started earlier";
  return `since ${day(counted_since)}${seen}`;
}

const COLUMNS: Column<JobLine>[] = [
  {
    id: "name",
    title: "Job",
    value: (j) => j.id,
    cell: (j) => (
      <>
        <a href={to.job(j.id)}>{j.name || j.id}</a>
        <small class="plain">
          {[
            j.namespace || (j.kind === "slurm" ? `Slurm ${j.id}` : kindName(j.kind)),
            j.user,
            j.team && `team ${j.team}`,
          ]
            .filter(Boolean)
            .join(" · ")}
        </small>
      </>
    ),
  },
  {
    id: "state",
    title: "State",
    value: (j) => `${ORDER.indexOf(j.state)} ${j.state}`,
    cell: (j) => (
      <>
        <Mark {...STATE[j.state]}>{j.state}</Mark>
        {j.stalled_since && (
          <small class="plain">
            since <Time at={j.stalled_since} />
          </small>
        )}
        {j.incidents.length > 0 && (
          <small class="plain">
            {j.incidents.slice(0, 2).map((i) => (
              <a key={i} href={to.incident(i)}>
                {i}{" "}
              </a>
            ))}
          </small>
        )}
      </>
    ),
  },
  {
    id: "gpus",
    title: "GPUs",
    numeric: true,
    value: (j) => j.gpus,
    cell: (j) => (
      <>
        {count(j.gpus)}
        {j.nodes > 0 && <small>{many(j.nodes, "node")}</small>}
      </>
    ),
  },
  {
    id: "used",
    title: "Used",
    numeric: true,
    value: (j) => j.used,
    cell: (j) => dim(percentOf(j.used)),
    hint: "share of allocated GPU time with active SMs, last hour",
  },
  { id: "bound", title: "Bottleneck", value: (j) => BOUND[j.bound_by], cell: (j) => dim(BOUND[j.bound_by]) },
  {
    id: "goodput",
    title: "Goodput",
    numeric: true,
    value: (j) => j.goodput,
    cell: (j) => dim(percentOf(j.goodput)),
    hint: "productive step time divided by wall time, last hour",
  },
  {
    id: "straggler",
    title: "Straggler",
    value: (j) => (j.straggler ? stragglerPlace(j.straggler) : ""),
    cell: (j) =>
      j.straggler ? (
        <Mark tone="warning">
          {j.straggler.rank == null ? stragglerPlace(j.straggler) : `rank ${j.straggler.rank}`}
          <small class="plain">{behind(j.straggler)}</small>
        </Mark>
      ) : (
        dim((j.used == null && j.goodput == null) || STUCK.includes(j.state) ? "unknown" : "none")
      ),
    minor: true,
  },
  {
    id: "hours",
    title: "GPU-hours",
    numeric: true,
    value: (j) => j.gpu_hours,
    cell: (j) => <Counted job={j}>{hours(j.gpu_hours)}</Counted>,
    minor: true,
    hint: "since the start of the job",
  },
  {
    id: "cost",
    title: "Cost so far",
    numeric: true,
    value: (j) => j.cost?.amount,
    cell: (j) => <Counted job={j}>{money(j.cost?.amount, j.cost?.currency)}</Counted>,
  },
];
