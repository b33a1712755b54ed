// One job: state and reason, time breakdown, ranks, efficiency and events.

import { useEffect } from "preact/hooks";
import strips from "../../../../watchkeeper/packs/console/job.json";
import {
  Bar,
  Chip,
  Empty,
  Facts,
  MarkedText,
  Panel,
  Problem,
  RequestProblem,
  Skeleton,
  Time,
} from "../../components/parts";
import { Strips } from "../../components/strips";
import { Export, Table } from "../../components/table";
import { useRequest } from "../../lib/api";
import { duration } from "../../lib/durations";
import { count, dateTime, humanise, money, percentOf, plural, shortDuration } from "../../lib/format";
import type { Strip } from "../../lib/lines";
import { fillStrips, quoted } from "../../lib/promql";
import { navigate, to } from "../../lib/router";
import { now, useHub, usePulse } from "../../lib/store";
import { Goodput } from "./goodput";
import {
  BOTTLENECKS,
  type Hardware,
  hours,
  type JobLine,
  kindName,
  type Report,
  rankAndPlace,
  STATE,
  type Straggler,
  stragglerKind,
  stragglerPlace,
  type Verdict,
} from "./labels";
import { Ranks, rankColumns } from "./ranks";

const MOST_GPUS = 64;

export function JobPage({ id, theme, address }: { id: string; theme: string; address: URL }) {
  const beat = usePulse();
  const { answer, problem } = useRequest<Report>(`/api/jobs/${encodeURIComponent(id)}`, beat);
  const { status } = useHub();
  if (!answer)
    return (
      <main class="single" data-testid="job-page">
        <Panel>
          {!problem && <Skeleton lines={10} />}
          {problem && (problem.status === 404 ? <NoJob id={id} /> : <Problem>{problem.message}</Problem>)}
        </Panel>
      </main>
    );
  const { efficiency, goodput } = answer;
  return (
    <main data-testid="job-page">
      <RequestProblem problem={problem} isStale />
      <div class="columns">
        <div>
          <Head report={answer} />
          <Panel
            title="Time breakdown"
            id="goodput-panel"
            hint={
              goodput.share == null ? (
                "productive time unknown: the job reports no steps"
              ) : (
                <>
                  productive {percentOf(goodput.share)} of {duration(goodput.wall_seconds)}
                </>
              )
            }
          >
            <Goodput goodput={goodput} />
          </Panel>
          {status && <ActivityPanel report={answer} theme={theme} />}
          <RanksPanel report={answer} address={address} />
        </div>
        <aside>
          <Efficiency efficiency={efficiency} />
          {efficiency.fixes.length > 0 && (
            <Panel title="Recommendations" hint="largest effect first" id="fixes-panel">
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
          <DetailsPanel report={answer} />
          <EventsPanel report={answer} />
        </aside>
      </div>
    </main>
  );
}

function Head({ report: { job, why, verdict } }: { report: Report }) {
  const state = STATE[job.state] ?? STATE.unknown;
  return (
    <Panel class="head">
      <h1 data-testid="title">{job.name || job.id}</h1>
      {verdict && <VerdictLine verdict={verdict} stateTone={state.tone} />}
      <p class="dim" data-testid="job-why">
        {why}
      </p>
      <p class="chips">
        <Chip tone={state.tone}>
          <i aria-hidden="true">{state.glyph}</i> {job.state}
        </Chip>
        <Chip>{kindName(job.kind)}</Chip>
        <Chip>
          {plural(job.gpus, "GPU")} on {plural(job.nodes, "node")}
        </Chip>
        {job.started_at && (
          <Chip title={dateTime(job.started_at)}>started {shortDuration(now() - Date.parse(job.started_at))} ago</Chip>
        )}
        {job.team && <Chip>team {job.team}</Chip>}
      </p>
    </Panel>
  );
}

/** What is wrong, since when, because of what, and its incident: the sentence of `explain job`. */
function VerdictLine({ verdict, stateTone }: { verdict: Verdict; stateTone: string }) {
  const { status, text, since, because, incident } = verdict;
  const wrongTone = stateTone === "warning" ? stateTone : "critical";
  return (
    <p data-testid="job-verdict">
      <MarkedText tone={status === "wrong" ? wrongTone : status === "fine" ? "ok" : ""}>
        {text}
        {since && (
          <>
            {" since "}
            <Time at={since} full />
          </>
        )}
        {because && `: ${because}`}
      </MarkedText>
      {incident && (
        <>
          {" "}
          <a class="nowrap" href={to.incident(incident)}>
            {incident}
          </a>
        </>
      )}
    </p>
  );
}

/** The activity of the job's GPUs with event marks; at most the last six hours. */
function ActivityPanel({ report: { job, ranks, hardware }, theme }: { report: Report; theme: string }) {
  const start = job.started_at ? Math.max(Date.parse(job.started_at), now() - 6 * 36e5) : now() - 36e5;
  const end = Math.floor(now() / 15000) * 15000;
  const uuids = ranks.slice(0, MOST_GPUS).flatMap((r) => r.uuid || []);
  if (!uuids.length) return null;
  return (
    <Panel title="Activity" hint={ranks.length > MOST_GPUS ? `first ${MOST_GPUS} GPUs` : "all GPUs"} id="job-clock">
      <Strips
        id="job-strips"
        omitsEmpty
        name={`Activity of ${job.name}`}
        theme={theme}
        start={start}
        end={end}
        marks={hardware.slice(0, 6).map((h) => ({
          at: h.at,
          label: h.kind.endsWith("xid") ? `${h.kind === "xid" ? "Xid" : "SXid"} ${h.code}` : humanise(h.kind),
          tone: "bad",
        }))}
        strips={fillStrips(strips as Strip[], { gpus: quoted(uuids.join("|")) })}
      />
    </Panel>
  );
}

function RanksPanel({ report: { job, ranks, left_out }, address }: { report: Report; address: URL }) {
  const stragglerNote = job.straggler ? ` · ${stragglerKind(job.straggler)} marked` : "";
  return (
    <Panel title="Ranks" id="ranks-panel" hint={`${plural(ranks.length + left_out, "rank")}${stragglerNote}`}>
      <Ranks ranks={ranks} straggler={job.straggler} />
      <Table
        id="ranks"
        caption="Ranks of the job"
        rows={ranks}
        rowKey={(r) => `${r.rank} ${r.uuid}`}
        rowTestId="rank-row"
        address={address}
        sort="-score"
        maxRows={12}
        href={(r) => to.gpu(r.uuid)}
        columns={rankColumns(job.straggler)}
        empty={<Empty title="Ranks unknown">No source reports the GPUs of this job.</Empty>}
      />
      {left_out > 0 && <p class="dim small">{plural(left_out, "more rank")} not shown.</p>}
    </Panel>
  );
}

function Efficiency({ efficiency }: { efficiency: Report["efficiency"] }) {
  return (
    <Panel
      title="Efficiency"
      id="efficiency-panel"
      hint={efficiency.window_seconds ? `over ${duration(efficiency.window_seconds)}` : undefined}
    >
      <p>
        <b class="bound">
          {efficiency.bound_by === "unknown"
            ? "Bottleneck: unknown"
            : `Bottleneck: ${BOTTLENECKS[efficiency.bound_by]}`}
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
  );
}

function DetailsPanel({ report }: { report: Report }) {
  const { job } = report;
  const fullName = job.namespace ? `${job.namespace}/${job.name}` : job.id;
  return (
    <Panel title="Details">
      <Facts
        rows={[
          ["Owner", [job.user, job.team && `team ${job.team}`].filter(Boolean).join(" · ") || "unknown"],
          ["Cost so far", <Cost job={job} />],
          ["Goodput, last hour", percentOf(job.goodput)],
          [
            "Stalled",
            job.stalled_since && (
              <>
                since <Time at={job.stalled_since} full />
              </>
            ),
          ],
          ["Blocked by", job.straggler && <StragglerFact straggler={job.straggler} />],
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
          ["Links", <a href={`/fabric?job=${encodeURIComponent(fullName)}`}>links of the nodes of this job</a>],
          [
            "Experiment",
            report.run_url ? (
              <a href={report.run_url} target="_blank" rel="noreferrer" data-testid="run-link">
                {host(report.run_url)}
              </a>
            ) : (
              "no link to an experiment tracker"
            ),
          ],
        ]}
      />
      {report.notes.map((n) => (
        <p class="dim small" key={n}>
          {n}
        </p>
      ))}
    </Panel>
  );
}

function Cost({ job }: { job: JobLine }) {
  const isStartUnknown = job.counted_since && !job.started_at;
  return (
    <>
      {money(job.cost?.amount, job.cost?.currency)}
      {job.gpu_hours != null && (
        <span class="dim">
          {` · ${hours(job.gpu_hours)} GPU-hours`}
          {isStartUnknown && " since first seen at "}
          {isStartUnknown && <Time at={job.counted_since!} full />}
        </span>
      )}
    </>
  );
}

function StragglerFact({ straggler }: { straggler: Straggler }) {
  const name = stragglerPlace(straggler);
  return (
    <>
      {straggler.rank != null && `rank ${straggler.rank} on `}
      {straggler.uuid ? <a href={to.gpu(straggler.uuid)}>{name}</a> : name}: {straggler.why}
    </>
  );
}

function EventsPanel({ report }: { report: Report }) {
  return (
    <Panel title="Events" hint="hardware and loss" id="job-events">
      {report.hardware.length + report.losses.length === 0 ? (
        <p class="dim">
          {report.ranks.some((r) => r.node)
            ? "No hardware event and no loss anomaly during this job."
            : "Unknown: no source reports on which GPUs the job runs."}
        </p>
      ) : (
        <ul class="journal">
          {listEvents(report).map((e, i) => (
            <li key={i}>
              <Time at={e.at} full /> <b>{e.head}</b>
              <p>{e.text}</p>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

/** Hardware events and loss anomalies, newest first; each anomaly with the hardware events near its time. */
function listEvents({ hardware, losses }: Report): { at: string; head: string; text: string }[] {
  const hardwareText = (events: Hardware[]) => events.map((h) => `${rankAndPlace(h)}: ${h.text}`).join("; ");
  const events = hardware.map((h) => ({ at: h.at, head: rankAndPlace(h), text: h.text }));
  const lossEvents = losses.map((l) => ({
    at: l.at,
    head: l.what,
    text: l.hardware.length ? `at that time: ${hardwareText(l.hardware)}` : "no hardware event at that time",
  }));
  return [...events, ...lossEvents].sort((a, b) => b.at.localeCompare(a.at)).slice(0, 30);
}

/** The name of a pod redirects to its job. */
function NoJob({ id }: { id: string }) {
  const { answer } = useRequest<{ jobs: JobLine[] }>("/api/jobs?limit=1000");
  const closestJob = answer?.jobs.filter((j) => id.startsWith(j.id)).sort((a, b) => b.id.length - a.id.length)[0];
  useEffect(() => {
    if (closestJob) navigate(to.job(closestJob.id), true);
  }, [closestJob?.id]);
  return (
    <Empty title={`Job ${id} not found`}>
      It may have ended long ago, or the name may be misspelled. <a href="/jobs">All jobs</a>
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

export function amount(n: number | null, unit: string): string {
  if (n == null) return "unknown";
  return unit === "bytes"
    ? `${count(n / 2 ** 30)} GiB`
    : `${Number(n.toPrecision(3))} ${n === 1 ? unit.replace(/s$/, "") : unit}`;
}
