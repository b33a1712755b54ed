// Jobs: how each gets on, what it holds and uses, what it is bound by, where its time went, and its ranks side by side.

import { useEffect, useMemo } from "preact/hooks";
import strips from "../../../watchkeeper/packs/console/job.json";
import { Bar, Chip, Choice, Empty, Facts, Mark, Panel, Problem, Skeleton, Tile, Time } from "../components/parts";
import { Strips } from "../components/strips";
import { type Column, Export, Table } from "../components/table";
import { useAsk } from "../lib/api";
import { duration } from "../lib/durations";
import { ago, count, day, many, money, percent, percentOf, words } from "../lib/format";
import type { Strip } from "../lib/lines";
import { fillAll, quoted } from "../lib/promql";
import { go, type PageProps, param, put, to, withParams } from "../lib/router";
import { now, useHub, usePulse } from "../lib/store";
import "../styles/pages.css";

interface Straggler {
  rank: number | null;
  node: string;
  gpu: string;
  uuid: string;
  score: number | null;
  why: string;
}
export interface JobLine {
  id: string;
  kind: string;
  cluster: string;
  name: string;
  namespace: string;
  user: string;
  team: string;
  state: string;
  nodes: number;
  gpus: number;
  started_at: string | null;
  counted_since: string | null;
  gpu_hours: number | null;
  used: number | null;
  memory_used: number | null;
  bound_by: string;
  goodput: number | null;
  stalled_since: string | null;
  straggler: Straggler | null;
  cost: { amount: number | null; currency: string } | null;
  incidents: string[];
}
interface Used {
  what: string;
  held: number | null;
  used: number | null;
  unit: string;
  share: number | null;
}
interface Rank {
  rank: number | null;
  node: string;
  gpu: string;
  uuid: string;
  sm_active: number | null;
  utilisation_percent: number | null;
  power_watts: number | null;
  step_seconds: number | null;
  score: number | null;
  state: string;
}
interface Hardware {
  at: string;
  place: string;
  kind: string;
  code: string;
  cause: string | null;
  text: string;
  rank: number | null;
}
const whose = (h: Hardware) => (h.rank == null ? h.place : `rank ${h.rank} · ${h.place}`);
interface Report {
  job: JobLine;
  why: string;
  efficiency: {
    window_seconds: number;
    uses: Used[];
    bound_by: string;
    why: string;
    fixes: { do: string; why: string; command: string }[];
    unseen: string[];
  };
  goodput: {
    wall_seconds: number;
    productive_seconds: number | null;
    share: number | null;
    steps: number | null;
    step_seconds: number | null;
    longest_pause_seconds: number | null;
    lost: { reason: string; seconds: number }[];
  };
  ranks: Rank[];
  left_out: number;
  hardware: Hardware[];
  losses: { at: string; what: string; value: number | null; hardware: Hardware[] }[];
  run_url: string | null;
  notes: string[];
}
export const STATE: Record<string, { tone: string; glyph: string }> = {
  hung: { tone: "critical", glyph: "✕" },
  stalled: { tone: "critical", glyph: "✕" },
  diverged: { tone: "critical", glyph: "◆" },
  slow: { tone: "warning", glyph: "▲" },
  idle: { tone: "warning", glyph: "○" },
  paused: { tone: "info", glyph: "‖" },
  pending: { tone: "", glyph: "…" },
  running: { tone: "ok", glyph: "✓" },
  unknown: { tone: "", glyph: "·" },
};
const TROUBLE = ["hung", "stalled", "diverged", "slow", "idle"];
/** Nobody is behind in a job where all wait; its page says for whom. */
const STUCK = ["hung", "stalled"];
const ORDER = ["hung", "stalled", "diverged", "slow", "idle", "paused", "pending", "running", "unknown"];
const BOUND: Record<string, string> = {
  compute: "compute",
  memory_bandwidth: "memory bandwidth",
  input: "input",
  communication: "communication",
  straggler: "a straggler",
  power_or_heat: "power or heat",
  nothing: "nothing",
  unknown: "unknown",
};
const hours = (n: number | null) => (n == null ? "unknown" : n < 10 ? n.toFixed(1) : count(n));

/** Of a plain job no scheduler tells: the program alone says what it is called. */
const kindName = (kind: string) => (kind === "plain" ? "no scheduler names it" : kind);
const dim = (text: string) => (text === "unknown" || text === "none" ? <span class="dim">{text}</span> : text);

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
        hint={
          shown &&
          jobs &&
          `${count(shown.length)}${shown.length < jobs.length ? ` of ${count(jobs.length)}` : ""} · those in trouble first`
        }
        side={
          <div class="pick">
            <input
              id="filter"
              class="narrow"
              type="search"
              value={param(address, "q")}
              placeholder="Name, user, team or state"
              aria-label="Only jobs with these words"
              data-testid="jobs-filter"
              onInput={(e) => put("q", e.currentTarget.value)}
            />
            <Choice
              label="which jobs"
              id="jobs-state"
              options={[
                ["all", "All"],
                ["trouble", "In trouble"],
                ["running", "Running"],
                ["pending", "Waiting"],
              ]}
              value={only}
              choose={(s) => put("state", s === "all" ? null : s)}
            />
          </div>
        }
      >
        {answer && answer.problems.length > 0 && (
          <p class="silenced">▲ Not all is known: {answer.problems.join("; ")}</p>
        )}
        <Table
          id="jobs"
          caption="Jobs, those in trouble first"
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
              <Empty title="No job is like this">Take a word out of the filter.</Empty>
            ) : (
              <Empty title="No job holds a GPU">
                Jobs appear as soon as a scheduler, the kubelet or a program itself names who holds a GPU.
              </Empty>
            )
          }
        />
      </Panel>
    </main>
  );
}

function Figures({ jobs, address }: { jobs: JobLine[]; address: URL }) {
  const held = jobs.filter((j) => j.state !== "pending");
  const gpus = held.reduce((sum, j) => sum + j.gpus, 0);
  const known = held.filter((j) => j.used != null && j.gpus);
  const used = known.reduce((sum, j) => sum + j.used! * j.gpus, 0);
  const base = known.reduce((sum, j) => sum + j.gpus, 0);
  const bad = jobs.filter((j) => TROUBLE.includes(j.state));
  const good = jobs.filter((j) => j.goodput != null);
  const stragglers = jobs.filter((j) => j.straggler);
  const goodGpus = good.reduce((s, j) => s + j.gpus, 0);
  const goodput = goodGpus ? good.reduce((s, j) => s + j.goodput! * j.gpus, 0) / goodGpus : null;
  const by = ORDER.filter((s) => TROUBLE.includes(s))
    .map((s) => [s, bad.filter((j) => j.state === s).length] as const)
    .filter(([, n]) => n);
  // Before anything is measured nobody is known to be well.
  const isBlind = base === 0 && good.length === 0;
  const nobody = (n: number) => (n === 0 && isBlind ? "unknown" : count(n));
  return (
    <section class="tiles even" aria-label="jobs in figures">
      <Tile
        id="tile-jobs"
        name="Jobs"
        value={count(jobs.length)}
        meaning={`${count(jobs.filter((j) => j.state === "running").length)} run · ${count(jobs.filter((j) => j.state === "pending").length)} wait`}
      />
      <Tile
        id="tile-held"
        name="GPUs held"
        value={count(gpus)}
        meaning={`by ${many(held.length, "job")} of ${many(new Set(jobs.map((j) => j.team).filter(Boolean)).size, "team")}`.replace(
          "of 0 teams",
          "whose teams are unknown",
        )}
      />
      <Tile
        id="tile-used"
        name="Used of what is held"
        value={percentOf(base ? used / base : null)}
        meaning={base < gpus ? `SM active, of ${count(base)} GPUs that are measured` : "SM active over the last hour"}
      />
      <Tile
        id="tile-trouble"
        name="In trouble"
        value={nobody(bad.length)}
        tone={bad.some((j) => STATE[j.state]?.tone === "critical") ? "bad" : bad.length ? "warn" : undefined}
        meaning={
          by.length
            ? by.map(([s, n]) => `${n} ${s}`).join(" · ")
            : isBlind
              ? "no GPU of a job is measured yet"
              : "none hung, stalled, slow or idle"
        }
        href={withParams(address, { state: "trouble" })}
      />
      <Tile
        id="tile-goodput"
        name="Goodput"
        value={percentOf(goodput)}
        meaning={good.length ? `of ${many(good.length, "job")} that tell of their steps` : "no job tells of its steps"}
      />
      <Tile
        id="tile-stragglers"
        name="Stragglers"
        value={nobody(stragglers.length)}
        tone={stragglers.length ? "warn" : undefined}
        meaning={
          stragglers.length
            ? `worst ${behind(stragglers.map((j) => j.straggler!).reduce((a, b) => ((b.score ?? Infinity) > (a.score ?? Infinity) ? b : a)))}`
            : isBlind
              ? "no rank is measured yet"
              : jobs.some((j) => STUCK.includes(j.state))
                ? "no rank of the jobs that go on is behind its peers"
                : "no rank is behind its peers"
        }
      />
    </section>
  );
}

/** A figure so far, and on hover since when; a job that began before this hub saw it has cost more. */
const Counted = (p: { job: JobLine; children: string }) => (
  <span
    class={p.children === "unknown" ? "dim" : undefined}
    title={
      p.job.counted_since
        ? `since ${day(p.job.counted_since)}${p.job.started_at ? "" : ", when this hub first saw it: it may have begun before"}`
        : undefined
    }
  >
    {p.children}
  </span>
);
const whom = (s: Straggler) => [s.node || "an unknown node", s.gpu && `GPU ${s.gpu}`].filter(Boolean).join(" ");
const behind = (s: Straggler) =>
  s.score == null ? "the others wait for it" : `${percent(100 * s.score)} behind its peers`;
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
    hint: "share of the held GPU time of the last hour in which SMs were active",
  },
  { id: "bound", title: "Bound by", value: (j) => BOUND[j.bound_by], cell: (j) => dim(BOUND[j.bound_by]) },
  {
    id: "goodput",
    title: "Goodput",
    numeric: true,
    value: (j) => j.goodput,
    cell: (j) => dim(percentOf(j.goodput)),
    hint: "productive step time over wall time, of the last hour",
  },
  {
    id: "straggler",
    title: "Straggler",
    value: (j) => (j.straggler ? whom(j.straggler) : ""),
    cell: (j) =>
      j.straggler ? (
        <Mark tone="warning">
          {j.straggler.rank == null ? whom(j.straggler) : `rank ${j.straggler.rank}`}
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
    hint: "so far",
  },
  {
    id: "cost",
    title: "Cost so far",
    numeric: true,
    value: (j) => j.cost?.amount,
    cell: (j) => <Counted job={j}>{money(j.cost?.amount, j.cost?.currency)}</Counted>,
  },
];

function OneJob({ id, theme, address }: { id: string; theme: string; address: URL }) {
  const beat = usePulse();
  const { answer, problem } = useAsk<Report>(`/api/jobs/${encodeURIComponent(id)}`, beat);
  const { status } = useHub();
  if (!answer)
    return (
      <main class="single" data-testid="job-page">
        <Panel>
          {problem ? (
            problem.status === 404 ? (
              <NoJob id={id} />
            ) : (
              <Problem>{problem.message}</Problem>
            )
          ) : (
            <Skeleton lines={10} />
          )}
        </Panel>
      </main>
    );
  const { job, efficiency, goodput, ranks } = answer;
  const state = STATE[job.state] ?? STATE.unknown;
  const start = job.started_at ? Math.max(Date.parse(job.started_at), now() - 6 * 36e5) : now() - 36e5;
  const end = Math.floor(now() / 15000) * 15000;
  const uuids = ranks
    .slice(0, 64)
    .map((r) => r.uuid)
    .filter(Boolean);
  return (
    <main data-testid="job-page">
      {problem && <Problem>This is what was known before: {problem.message}</Problem>}
      <div class="columns">
        <div>
          <Panel class="head">
            <p class="chips">
              <Chip tone={state.tone}>
                <i aria-hidden="true">{state.glyph}</i> {job.state}
              </Chip>
              <Chip>{kindName(job.kind)}</Chip>
              <Chip>
                {many(job.gpus, "GPU")} on {many(job.nodes, "node")}
              </Chip>
              {job.started_at && (
                <Chip title={day(job.started_at)}>started {ago(now() - Date.parse(job.started_at))} ago</Chip>
              )}
              {job.team && <Chip>team {job.team}</Chip>}
            </p>
            <h1 data-testid="title">{job.name || job.id}</h1>
            <p class="lead" data-testid="job-why">
              {answer.why}
            </p>
          </Panel>
          <Panel
            title="Where the time went"
            id="goodput-panel"
            hint={
              goodput.share == null ? (
                "the job tells of no steps: productive time unknown"
              ) : (
                <>
                  goodput {percentOf(goodput.share)} of {duration(goodput.wall_seconds)}
                </>
              )
            }
          >
            <Goodput goodput={goodput} />
          </Panel>
          {status && uuids.length > 0 && (
            <Panel title="On one clock" hint={ranks.length > 64 ? "the first 64 GPUs" : "all its GPUs"} id="job-clock">
              <Strips
                id="job-strips"
                quiet
                name={`Activity of ${job.name}`}
                theme={theme}
                start={start}
                end={end}
                marks={answer.hardware.slice(0, 6).map((h) => ({
                  at: h.at,
                  label: h.kind.endsWith("xid") ? `${h.kind === "xid" ? "Xid" : "SXid"} ${h.code}` : words(h.kind),
                  tone: "bad",
                }))}
                strips={fillAll(strips as Strip[], { gpus: quoted(uuids.join("|")) })}
              />
            </Panel>
          )}
          <Panel
            title="Ranks"
            id="ranks-panel"
            hint={`${many(ranks.length + answer.left_out, "rank")} side by side${job.straggler ? " · the straggler is marked" : ""}`}
          >
            <Ranks ranks={ranks} straggler={job.straggler} />
            <Table
              id="ranks"
              caption="Ranks of the job"
              rows={ranks}
              rowKey={(r) => `${r.rank} ${r.uuid}`}
              rowTestId="rank-row"
              address={address}
              sort="-score"
              most={12}
              href={(r) => to.gpu(r.uuid)}
              columns={rankColumns(job.straggler)}
              empty={<Empty title="Its ranks are unknown">Nobody has told which GPUs it holds.</Empty>}
            />
            {answer.left_out > 0 && <p class="dim small">{many(answer.left_out, "more rank")} left out.</p>}
          </Panel>
        </div>
        <aside>
          <Panel
            title="Efficiency"
            id="efficiency-panel"
            hint={efficiency.window_seconds ? `over ${duration(efficiency.window_seconds)}` : undefined}
          >
            <p>
              <b class="bound">
                {efficiency.bound_by === "unknown"
                  ? "What it is bound by is unknown"
                  : `Bound by ${BOUND[efficiency.bound_by]}`}
              </b>
            </p>
            <p class="dim">{efficiency.why}</p>
            <table class="facts uses">
              <tbody>
                {efficiency.uses.map((u) => (
                  <tr key={u.what}>
                    <th scope="row">{u.what}</th>
                    <td>
                      <Bar
                        share={u.share}
                        label={u.what}
                        text={
                          u.share == null
                            ? "not measured"
                            : `${percentOf(u.share)} · ${amount(u.used, u.unit)} of ${amount(u.held, u.unit)}`
                        }
                      />
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
            {efficiency.uses.length > 0 && (
              <p class="foot-line">
                <Export
                  id="uses"
                  columns={[
                    { title: "what", value: (u) => u.what },
                    { title: "share", value: (u) => u.share },
                    { title: "used", value: (u) => u.used },
                    { title: "held", value: (u) => u.held },
                    { title: "unit", value: (u) => u.unit },
                  ]}
                  rows={efficiency.uses}
                />
              </p>
            )}
            {efficiency.unseen.length > 0 && <p class="dim small">Not measured: {efficiency.unseen.join(", ")}.</p>}
          </Panel>
          {efficiency.fixes.length > 0 && (
            <Panel title="What would help" hint="the most first" id="fixes-panel">
              <ol class="plan">
                {efficiency.fixes.map((f) => (
                  <li key={f.do}>
                    <div>
                      <b>{f.do}</b>
                      <p>{f.why}</p>
                      {f.command && <code>{f.command}</code>}
                    </div>
                  </li>
                ))}
              </ol>
            </Panel>
          )}
          <Panel title="Facts">
            <Facts
              rows={[
                ["Owner", [job.user, job.team && `team ${job.team}`].filter(Boolean).join(" · ") || "unknown"],
                [
                  "Cost so far",
                  <>
                    {money(job.cost?.amount, job.cost?.currency)}
                    {job.gpu_hours != null && (
                      <span class="dim">
                        {" "}
                        · {hours(job.gpu_hours)} GPU-hours
                        {job.counted_since && !job.started_at && (
                          <>
                            {" "}
                            since it was first seen, <Time at={job.counted_since} full />
                          </>
                        )}
                      </span>
                    )}
                  </>,
                ],
                [
                  "Stalled",
                  job.stalled_since && (
                    <>
                      since <Time at={job.stalled_since} full />
                    </>
                  ),
                ],
                [
                  "Straggler",
                  job.straggler && (
                    <>
                      {job.straggler.rank == null ? "" : `rank ${job.straggler.rank} on `}
                      {job.straggler.uuid ? (
                        <a href={to.gpu(job.straggler.uuid)}>{whom(job.straggler)}</a>
                      ) : (
                        whom(job.straggler)
                      )}
                      : {job.straggler.why}
                    </>
                  ),
                ],
                [
                  "Incidents",
                  job.incidents.length
                    ? job.incidents.map((i) => (
                        <a key={i} href={to.incident(i)}>
                          {i}{" "}
                        </a>
                      ))
                    : "none",
                ],
                [
                  "Links",
                  <a
                    href={`/fabric?job=${encodeURIComponent(job.namespace ? `${job.namespace}/${job.name}` : job.id)}`}
                  >
                    links of its nodes
                  </a>,
                ],
                [
                  "Run",
                  answer.run_url ? (
                    <a href={answer.run_url} target="_blank" rel="noreferrer" data-testid="run-link">
                      {host(answer.run_url)}
                    </a>
                  ) : (
                    "no link to an experiment tracker"
                  ),
                ],
              ]}
            />
            {answer.notes.map((n) => (
              <p class="dim small" key={n}>
                {n}
              </p>
            ))}
          </Panel>
          <Panel title="What happened to it" hint="hardware and loss" id="job-events">
            {answer.hardware.length + answer.losses.length === 0 ? (
              <p class="dim">Nothing happened to its GPUs or its loss while it ran.</p>
            ) : (
              <ul class="journal">
                {[
                  ...answer.hardware.map((h) => ({ at: h.at, head: whose(h), text: h.text })),
                  ...answer.losses.map((l) => ({
                    at: l.at,
                    head: l.what,
                    text: l.hardware.length
                      ? `around then: ${l.hardware.map((h) => `${whose(h)}: ${h.text}`).join("; ")}`
                      : "no hardware event around then",
                  })),
                ]
                  .sort((a, b) => b.at.localeCompare(a.at))
                  .slice(0, 30)
                  .map((e, i) => (
                    <li key={i}>
                      <Time at={e.at} full /> <b>{e.head}</b>
                      <p>{e.text}</p>
                    </li>
                  ))}
              </ul>
            )}
          </Panel>
        </aside>
      </div>
    </main>
  );
}

/** A pod's name leads to its job, where one begins like it. */
function NoJob({ id }: { id: string }) {
  const { answer } = useAsk<{ jobs: JobLine[] }>("/api/jobs?limit=1000");
  const near = answer?.jobs.filter((j) => id.startsWith(j.id)).sort((a, b) => b.id.length - a.id.length)[0];
  useEffect(() => {
    if (near) go(to.job(near.id), true);
  }, [near?.id]);
  return (
    <Empty title={`No job is called ${id}`}>
      It may have ended long ago, or its name is spelled otherwise. <a href="/jobs">All jobs</a>
    </Empty>
  );
}

const host = (url: string) => {
  try {
    return new URL(url).host;
  } catch {
    return url;
  }
};
function amount(n: number | null, unit: string): string {
  if (n == null) return "unknown";
  return unit === "bytes"
    ? `${count(n / 2 ** 30)} GiB`
    : `${Number(n.toPrecision(3))} ${n === 1 ? unit.replace(/s$/, "") : unit}`;
}

const LOST: Record<string, { text: string; tone: string }> = {
  productive: { text: "productive", tone: "accent" },
  stall: { text: "stalled", tone: "bad" },
  failure: { text: "failure", tone: "bad2" },
  restart: { text: "restart", tone: "warn" },
  queue: { text: "waiting in the queue", tone: "warn2" },
  pause: { text: "checkpoints and validation", tone: "calm" },
  unknown: { text: "unknown", tone: "unknown" },
};
function Goodput({ goodput }: { goodput: Report["goodput"] }) {
  const parts = [
    ...(goodput.productive_seconds == null ? [] : [{ reason: "productive", seconds: goodput.productive_seconds }]),
    ...goodput.lost.filter((l) => l.seconds > 0),
  ];
  const told = parts.reduce((sum, p) => sum + p.seconds, 0);
  const rest = goodput.wall_seconds - told;
  if (rest > 1) parts.push({ reason: "unknown", seconds: rest });
  const whole = Math.max(goodput.wall_seconds, told, 1);
  return (
    <>
      <div
        class="stackbar"
        role="img"
        data-testid="goodput-bar"
        aria-label={parts
          .map((p) => `${LOST[p.reason]?.text ?? p.reason} ${percent((100 * p.seconds) / whole)}`)
          .join(", ")}
      >
        {parts.map((p) => (
          <i
            key={p.reason}
            class={LOST[p.reason]?.tone ?? "unknown"}
            style={{ flexGrow: p.seconds / whole }}
            title={`${LOST[p.reason]?.text ?? p.reason}: ${duration(p.seconds)}`}
          />
        ))}
      </div>
      <ul class="keys-row">
        {parts.map((p) => (
          <li key={p.reason}>
            <i class={LOST[p.reason]?.tone ?? "unknown"} aria-hidden="true" />
            {LOST[p.reason]?.text ?? p.reason} <b>{percent((100 * p.seconds) / whole)}</b>{" "}
            <span class="dim">{duration(p.seconds)}</span>
          </li>
        ))}
      </ul>
      <Facts
        rows={[
          [
            "Steps",
            goodput.steps == null ? (
              "unknown: the job tells of none"
            ) : (
              <>
                {count(goodput.steps)}
                <span class="dim"> · one takes {duration(goodput.step_seconds)}</span>
              </>
            ),
          ],
          ["Longest pause", goodput.longest_pause_seconds == null ? null : duration(goodput.longest_pause_seconds)],
        ]}
      />
    </>
  );
}

/** One bar per rank: its step time, or its activity where the job tells of no steps; the straggler stands out by shape. */
function Ranks({ ranks, straggler }: { ranks: Rank[]; straggler: Straggler | null }) {
  const steps = ranks.some((r) => r.step_seconds != null);
  const value = (r: Rank) => (steps ? r.step_seconds : r.sm_active);
  const known = ranks.filter((r) => value(r) != null);
  if (known.length < 2) return null;
  const most = Math.max(...known.map((r) => value(r)!));
  if (most === 0)
    return <p class="hint gap-below">{steps ? "no rank has finished a step lately" : "no rank was active lately"}</p>;
  const shown = ranks.slice(0, 256);
  return (
    <figure
      class="ranks"
      aria-label={`${steps ? "Step time" : "SM activity"} of ${known.length} ranks`}
      data-testid="rank-bars"
    >
      <figcaption class="hint">
        {steps ? `step time, longest ${duration(most)}` : "SM active by rank, highest "}
        {!steps && percentOf(most)}
        {ranks.length > 256 && " · the first 256"}
      </figcaption>
      <div>
        {shown.map((r, i) => {
          const marked = straggler && (straggler.uuid ? straggler.uuid === r.uuid : straggler.rank === r.rank);
          const v = value(r);
          return (
            <a
              key={`${r.rank} ${r.uuid}`}
              href={to.gpu(r.uuid)}
              class={marked ? "straggler" : r.state}
              title={`${r.rank == null ? `GPU ${r.gpu}` : `rank ${r.rank}`} on ${r.node}: ${v == null ? "unknown" : steps ? duration(v) : percentOf(v)}${r.score != null ? `, ${percent(100 * r.score)} behind` : ""}`}
              aria-label={`rank ${r.rank ?? i}`}
              tabIndex={-1}
            >
              {marked && <em aria-hidden="true">▲</em>}
              <i style={{ height: `${v == null ? 0 : Math.max(2, (100 * v) / most)}%` }} />
              {v == null && <b aria-hidden="true">–</b>}
            </a>
          );
        })}
      </div>
    </figure>
  );
}
const RANK: Record<string, { tone: string; glyph: string }> = {
  works: { tone: "ok", glyph: "✓" },
  waits: { tone: "", glyph: "‖" },
  slow: { tone: "warning", glyph: "▲" },
  idle: { tone: "warning", glyph: "○" },
  missing: { tone: "critical", glyph: "✕" },
  unknown: { tone: "", glyph: "·" },
};
const rankColumns = (straggler: Straggler | null): Column<Rank>[] => [
  {
    id: "rank",
    title: "Rank",
    class: "short",
    value: (r) => r.rank,
    cell: (r) => (
      <>
        {r.rank ?? <span class="dim">unknown</span>}
        {straggler && straggler.uuid === r.uuid && <Chip tone="warning">▲ straggler</Chip>}
      </>
    ),
  },
  {
    id: "gpu",
    title: "GPU",
    class: "nowrap",
    value: (r) => `${r.node} ${r.gpu}`,
    cell: (r) => (
      <a href={to.gpu(r.uuid)}>
        {r.node} · GPU {r.gpu}
      </a>
    ),
  },
  { id: "state", title: "Does", value: (r) => r.state, cell: (r) => <Mark {...RANK[r.state]}>{r.state}</Mark> },
  {
    id: "sm",
    title: "SM active",
    numeric: true,
    class: "wide-only",
    value: (r) => r.sm_active,
    cell: (r) => percentOf(r.sm_active),
  },
  {
    id: "power",
    title: "Power",
    numeric: true,
    value: (r) => r.power_watts,
    cell: (r) => (r.power_watts == null ? "unknown" : `${count(r.power_watts)} W`),
    minor: true,
  },
  {
    id: "step",
    title: "Step",
    numeric: true,
    value: (r) => r.step_seconds,
    cell: (r) => (r.step_seconds === 0 ? "no step" : duration(r.step_seconds)),
  },
  {
    id: "score",
    title: "Behind",
    numeric: true,
    value: (r) => r.score,
    cell: (r) => (r.score == null ? "unknown" : r.score < 0.005 ? "–" : percent(100 * r.score)),
    hint: "how much longer it takes than the others",
  },
];
