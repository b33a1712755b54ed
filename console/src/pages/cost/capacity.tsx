// Capacity: the forecast with its intervals, what is free now, and recommendations.

import { Choice, Empty, MarkedText, Panel, Problem, Skeleton } from "../../components/parts";
import { type Column, Table } from "../../components/table";
import { type RequestError, useRequest } from "../../lib/api";
import { count, dateTime, humanise, percent, percentOf, plural } from "../../lib/format";
import { type PageProps, param, setParam, to } from "../../lib/router";
import { usePulse } from "../../lib/store";
import { CapacityFigures, type CapacityNow, FITS, ROOMS, WAITS } from "./capacity_figures";
import { type Forecast, ForecastChart, WhatIfLine } from "./forecast";
import { ReplayPanel } from "./replay";

interface Advice {
  action: string;
  gpus: number;
  why: string;
  confidence: number | null;
}

const HORIZONS = [
  ["1d", "1 day"],
  ["7d", "1 week"],
  ["4w", "4 weeks"],
  ["12w", "12 weeks"],
] as const;

export function CapacityView({ address, theme }: PageProps) {
  const horizon = param(address, "horizon", "7d");
  const beat = usePulse(60000);
  const slowBeat = Math.floor(beat / 5);
  const { answer: forecast, problem } = useRequest<Forecast>(`/api/capacity/forecast?horizon=${horizon}`, slowBeat);
  const { answer: adviceAnswer } = useRequest<{ advice: Advice[] }>(
    `/api/capacity/advice?horizon=${horizon}`,
    slowBeat,
  );
  const { answer: capacityNow, problem: nowProblem } = useRequest<CapacityNow>("/api/capacity/now", beat);
  const add = Number(param(address, "add", "0")) || 0;
  const capacity = forecast?.capacity_gpus == null ? null : forecast.capacity_gpus + add;
  return (
    <>
      {capacityNow && <CapacityFigures capacity={capacityNow} forecast={forecast} />}
      <div class="columns">
        <div>
          <Panel
            title="Forecast"
            id="forecast-panel"
            hint={
              forecast &&
              !forecast.reason &&
              `Demand: GPUs allocated and pending · ${percent(100 * forecast.interval)} prediction interval`
            }
            side={
              <Choice
                label="horizon"
                id="horizon"
                options={HORIZONS}
                value={horizon}
                choose={(h) => setParam("horizon", h === "7d" ? null : h)}
              />
            }
          >
            {problem && <Problem>{problem.message}</Problem>}
            {!forecast ? (
              !problem && <Skeleton height={260} />
            ) : forecast.reason ? (
              <Empty title="Not enough history for a forecast">{forecast.reason}</Empty>
            ) : (
              <>
                {forecast.sentence && (
                  <p class="answer" data-testid="sentence">
                    {forecast.sentence}
                  </p>
                )}
                <ForecastChart forecast={forecast} capacity={capacity} add={add} theme={theme} />
                <WhatIfLine forecast={forecast} capacity={capacity} add={add} />
                <p class="dim small">
                  {describeBacktest(forecast.backtest)} Based on {plural(forecast.history.steps, "step")} of{" "}
                  {forecast.step} since {dateTime(forecast.history.from)}. {forecast.notes.join(" · ")}
                </p>
              </>
            )}
          </Panel>
          <ReplayPanel address={address} />
          <Rightsizing capacity={capacityNow} problem={nowProblem} address={address} />
        </div>
        <aside>
          <AdvicePanel advice={adviceAnswer?.advice} reason={forecast?.reason} />
          <Panel title="Free capacity by job size" id="rooms-panel" hint="how many jobs can start now">
            {!capacityNow ? (
              <Skeleton lines={4} />
            ) : (
              <Table
                id="rooms"
                caption="Jobs that fit now, by size"
                rows={capacityNow.standing.rooms}
                rowKey={(r) => String(r.gpus)}
                columns={ROOMS}
                empty={<Empty title="No GPU is in service" />}
              />
            )}
          </Panel>
          <Panel title="Pending" id="waits-panel" hint="by job size">
            {!capacityNow ? (
              <Skeleton lines={3} />
            ) : capacityNow.waits.length === 0 ? (
              <p class="dim">No scheduler reports pending jobs.</p>
            ) : (
              <Table
                id="waits"
                caption="Pending jobs by size"
                rows={capacityNow.waits}
                rowKey={(w) => String(w.gpus)}
                columns={WAITS}
                empty={null}
              />
            )}
          </Panel>
        </aside>
      </div>
    </>
  );
}

/** The accuracy of earlier forecasts, in one sentence. */
function describeBacktest({ wape, naive_wape, coverage, origins }: Forecast["backtest"]): string {
  if (wape == null) return "Not tested yet: the history is too short.";
  const naiveText = `naive forecast ${percentOf(naive_wape)}`;
  const coverageText = `interval coverage ${percentOf(coverage)}`;
  return `Tested on ${plural(origins, "past forecast")}: error ${percentOf(wape)}, ${naiveText}; ${coverageText}.`;
}

const RIGHTSIZING: Column<CapacityNow["rightsizing"][number]>[] = [
  {
    id: "name",
    title: "Workload",
    value: (r) => r.name,
    cell: (r) => <a href={to.job(r.name)}>{r.name}</a>,
  },
  { id: "gpus", title: "Allocated", numeric: true, value: (r) => r.gpus, cell: (r) => plural(r.gpus, "GPU") },
  {
    id: "fit",
    title: "Recommendation",
    value: (r) => FITS[r.fit],
    cell: (r) => (
      <>
        {FITS[r.fit]}
        {r.profile && ` · ${r.profile}`}
        <small class="plain">{r.why}</small>
      </>
    ),
  },
  {
    id: "saves",
    title: "Frees",
    numeric: true,
    value: (r) => r.saves_gpus,
    cell: (r) => `${Number(r.saves_gpus.toFixed(1))} GPUs`,
  },
];

function Rightsizing({ capacity, problem, address }: { capacity?: CapacityNow; problem?: RequestError; address: URL }) {
  const unrated = capacity?.rightsizing.filter((r) => r.fit === "unknown") ?? [];
  const reasons = [...new Set(unrated.map((r) => r.why))];
  return (
    <Panel
      title="Rightsizing"
      id="rightsizing-panel"
      hint="workloads that need less than they are allocated, from one day of use"
    >
      <Table
        id="rightsizing"
        caption="Workloads and their recommended allocation"
        rows={capacity?.rightsizing.filter((r) => r.fit !== "keep" && r.fit !== "unknown")}
        problem={problem}
        rowKey={(r) => r.name}
        maxRows={20}
        sort="-saves"
        address={address}
        href={(r) => to.job(r.name)}
        columns={RIGHTSIZING}
        empty={<p class="dim">{describeNoRightsizing(capacity, unrated.length)}</p>}
      />
      {unrated.length > 0 && (
        <p class="dim small" data-testid="unjudged">
          {`${plural(unrated.length, "workload")} not rated: ${reasons.join("; ")}.`}
        </p>
      )}
    </Panel>
  );
}

/** Text for an empty list of recommendations. */
function describeNoRightsizing(capacity: CapacityNow | undefined, unratedCount: number) {
  if (!capacity?.standing.gpus) return <MarkedText>Unknown: no GPU has reported yet.</MarkedText>;
  if (!capacity.rightsizing.length) return <MarkedText tone="ok">No GPU is allocated now.</MarkedText>;
  const ratedCount = capacity.rightsizing.length - unratedCount;
  if (ratedCount === 0) return <MarkedText>Unknown: no measurements yet.</MarkedText>;
  const subject = unratedCount ? "other workloads" : "workloads";
  return <MarkedText tone="ok">{`All ${count(ratedCount)} ${subject} need what they are allocated.`}</MarkedText>;
}

function AdvicePanel({ advice, reason }: { advice?: Advice[]; reason?: string | null }) {
  return (
    <Panel title="Recommendations" id="advice-panel">
      {!advice ? (
        <Skeleton lines={3} />
      ) : advice.length === 0 ? (
        <p class="dim">
          {reason ? (
            <MarkedText>{`Unknown: ${reason}.`}</MarkedText>
          ) : (
            <MarkedText tone="ok">No change needed.</MarkedText>
          )}
        </p>
      ) : (
        <ol class="plan">
          {advice.map((a) => (
            <li key={a.action + a.why}>
              <div>
                <b>
                  {humanise(a.action)} {plural(a.gpus, "GPU")}
                </b>
                <p>
                  {a.why}
                  {a.confidence != null && ` · ${percent(100 * a.confidence)} confidence`}
                </p>
              </div>
            </li>
          ))}
        </ol>
      )}
    </Panel>
  );
}
