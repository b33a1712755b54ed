// Jobs: state, GPUs and their use, bottleneck, goodput and stragglers.

import { useMemo } from "preact/hooks";
import { Choice, Empty, MarkedText, Panel, Time } from "../../components/parts";
import { type Column, Table } from "../../components/table";
import { useRequest } from "../../lib/api";
import { count, countOfTotal, dateTime, money, percentOf, plural } from "../../lib/format";
import { type PageProps, param, setParam, to } from "../../lib/router";
import { usePulse } from "../../lib/store";
import "../../styles/pages.css";
import { JobFigures } from "./figures";
import { JobPage } from "./job";
import {
  BOTTLENECKS,
  describeSlowness,
  dimUnknown,
  hours,
  type JobLine,
  type JobsAnswer,
  kindName,
  PROBLEM_STATES,
  STATE,
  STATE_ORDER,
  STUCK_STATES,
  stragglerPlace,
} from "./labels";

export function JobsPage({ address, theme, id }: PageProps) {
  return id ? <JobPage id={id} theme={theme} address={address} key={id} /> : <JobList address={address} />;
}

function JobList({ address }: { address: URL }) {
  const beat = usePulse();
  const { answer, problem } = useRequest<JobsAnswer>("/api/jobs?limit=1000", beat);
  const q = param(address, "q").toLowerCase();
  const only = param(address, "state", "all");
  const jobs = answer?.jobs;
  const matches = (j: JobLine) =>
    (only === "all" || (only === "trouble" ? PROBLEM_STATES.includes(j.state) : j.state === only)) &&
    (!q ||
      `${j.id} ${j.name} ${j.namespace} ${j.user} ${j.team} ${j.state} ${BOTTLENECKS[j.bound_by]}`
        .toLowerCase()
        .includes(q));
  const shown = useMemo(() => jobs?.filter(matches), [jobs, q, only]);
  return (
    <main class="single stack" data-testid="jobs-page">
      {jobs && jobs.length > 0 && <JobFigures list={answer} address={address} />}
      <Panel
        title="Jobs"
        id="jobs-panel"
        hint={shown && answer && `${countOfTotal(shown.length, answer.total)} · problems first`}
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
              onInput={(e) => setParam("q", e.currentTarget.value)}
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
              choose={(s) => setParam("state", s === "all" ? null : s)}
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
          maxRows={150}
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

/** A total with its start on hover; a job that started before this hub first saw it used more. */
const CountedSince = (p: { job: JobLine; children: string }) => (
  <span class={p.children === "unknown" ? "dim" : undefined} title={countedSinceText(p.job)}>
    {p.children}
  </span>
);

function countedSinceText({ counted_since, started_at }: JobLine): string | undefined {
  if (!counted_since) return undefined;
  const firstSeenNote = started_at ? "" : ", when this hub first saw the job; it may have started earlier";
  return `since ${dateTime(counted_since)}${firstSeenNote}`;
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
    value: (j) => `${STATE_ORDER.indexOf(j.state)} ${j.state}`,
    cell: (j) => (
      <>
        <MarkedText {...STATE[j.state]}>{j.state}</MarkedText>
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
        {j.nodes > 0 && <small>{plural(j.nodes, "node")}</small>}
        {j.gpus_not_reporting > 0 && <small>{count(j.gpus_not_reporting)} not reporting</small>}
      </>
    ),
  },
  {
    id: "used",
    title: "Used",
    numeric: true,
    value: (j) => j.used,
    cell: (j) => dimUnknown(percentOf(j.used)),
    hint: "share of allocated GPU time with active SMs, last hour",
  },
  {
    id: "bound",
    title: "Bottleneck",
    value: (j) => BOTTLENECKS[j.bound_by],
    cell: (j) => dimUnknown(BOTTLENECKS[j.bound_by]),
  },
  {
    id: "goodput",
    title: "Goodput",
    numeric: true,
    value: (j) => j.goodput,
    cell: (j) => dimUnknown(percentOf(j.goodput)),
    hint: "productive step time divided by wall time, last hour",
  },
  {
    id: "straggler",
    title: "Blocked by",
    value: (j) => (j.straggler ? stragglerPlace(j.straggler) : ""),
    cell: (j) =>
      j.straggler ? (
        <MarkedText tone="warning">
          {j.straggler.rank == null ? stragglerPlace(j.straggler) : `rank ${j.straggler.rank}`}
          <small class="plain">{describeSlowness(j.straggler)}</small>
        </MarkedText>
      ) : (
        dimUnknown((j.used == null && j.goodput == null) || STUCK_STATES.includes(j.state) ? "unknown" : "none")
      ),
    minor: true,
  },
  {
    id: "hours",
    title: "GPU-hours",
    numeric: true,
    value: (j) => j.gpu_hours,
    cell: (j) => <CountedSince job={j}>{hours(j.gpu_hours)}</CountedSince>,
    minor: true,
    hint: "since the start of the job",
  },
  {
    id: "cost",
    title: "Cost so far",
    numeric: true,
    value: (j) => j.cost?.amount,
    cell: (j) => <CountedSince job={j}>{money(j.cost?.amount, j.cost?.currency)}</CountedSince>,
  },
];
