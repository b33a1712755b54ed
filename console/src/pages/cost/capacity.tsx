// Capacity: the forecast with its intervals, what is free now, and recommendations.

import { Choice, Empty, Mark, Panel, Problem, Skeleton } from "../../components/parts";
import { type Column, Table } from "../../components/table";
import { type Refused, useAsk } from "../../lib/api";
import { count, day, many, percent, percentOf, words } from "../../lib/format";
import { type PageProps, param, put, to } from "../../lib/router";
import { usePulse } from "../../lib/store";
import { FITS, Figures, type Now, ROOMS, WAITS } from "./capacity_figures";
import { type Forecast, ForecastChart, WhatIfLine } from "./forecast";
import { Replay } from "./replay";

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
  const slowly = Math.floor(beat / 5);
  const { answer: made, problem } = useAsk<Forecast>(`/api/capacity/forecast?horizon=${horizon}`, slowly);
  const { answer: advised } = useAsk<{ advice: Advice[] }>(`/api/capacity/advice?horizon=${horizon}`, slowly);
  const { answer: here, problem: unseen } = useAsk<Now>("/api/capacity/now", beat);
  const add = Number(param(address, "add", "0")) || 0;
  const capacity = made?.capacity_gpus == null ? null : made.capacity_gpus + add;
  return (
    <>
      {here && <Figures here={here} made={made} />}
      <div class="columns">
        <div>
          <Panel
            title="Forecast"
            id="forecast-panel"
            hint={
              made &&
              !made.reason &&
              `Demand: GPUs allocated and pending · ${percent(100 * made.interval)} prediction interval`
            }
            side={
              <Choice
                label="horizon"
                id="horizon"
                options={HORIZONS}
                value={horizon}
                choose={(h) => put("horizon", h === "7d" ? null : h)}
              />
            }
          >
            {problem && <Problem>{problem.message}</Problem>}
            {!made ? (
              !problem && <Skeleton height={260} />
            ) : made.reason ? (
              <Empty title="Not enough history for a forecast">{made.reason}</Empty>
            ) : (
              <>
                {made.sentence && (
                  <p class="answer" data-testid="sentence">
                    {made.sentence}
                  </p>
                )}
                <ForecastChart made={made} capacity={capacity} add={add} theme={theme} />
                <WhatIfLine made={made} capacity={capacity} add={add} />
                <p class="dim small">
                  {tested(made.backtest)} Based on {many(made.history.steps, "step")} of {made.step} since{" "}
                  {day(made.history.from)}. {made.notes.join(" · ")}
                </p>
              </>
            )}
          </Panel>
          <Replay address={address} />
          <Rightsizing here={here} problem={unseen} address={address} />
        </div>
        <aside>
          <AdvicePanel advice={advised?.advice} isYoung={Boolean(made?.reason)} />
          <Panel title="Free capacity by job size" id="rooms-panel" hint="how many jobs can start now">
            {!here ? (
              <Skeleton lines={4} />
            ) : (
              <Table
                id="rooms"
                caption="Jobs that fit now, by size"
                rows={here.standing.rooms}
                rowKey={(r) => String(r.gpus)}
                columns={ROOMS}
                empty={<Empty title="No GPU is in service" />}
              />
            )}
          </Panel>
          <Panel title="Pending" id="waits-panel" hint="by job size">
            {!here ? (
              <Skeleton lines={3} />
            ) : here.waits.length === 0 ? (
              <p class="dim">No scheduler reports pending jobs.</p>
            ) : (
              <Table
                id="waits"
                caption="Pending jobs by size"
                rows={here.waits}
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

/** How good earlier forecasts were. */
function tested({ wape, naive_wape, coverage, origins }: Forecast["backtest"]): string {
  if (wape == null) return "Not tested yet: the history is too short.";
  const before = `naive forecast ${percentOf(naive_wape)}`;
  const held = `interval coverage ${percentOf(coverage)}`;
  return `Tested on ${many(origins, "past forecast")}: error ${percentOf(wape)}, ${before}; ${held}.`;
}

const RIGHTSIZING: Column<Now["rightsizing"][number]>[] = [
  {
    id: "name",
    title: "Workload",
    value: (r) => r.name,
    cell: (r) => <a href={to.job(r.name)}>{r.name}</a>,
  },
  { id: "gpus", title: "Allocated", numeric: true, value: (r) => r.gpus, cell: (r) => many(r.gpus, "GPU") },
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

function Rightsizing({ here, problem, address }: { here?: Now; problem?: Refused; address: URL }) {
  const unjudged = here?.rightsizing.filter((r) => r.fit === "unknown") ?? [];
  const reasons = [...new Set(unjudged.map((r) => r.why))];
  return (
    <Panel
      title="Rightsizing"
      id="rightsizing-panel"
      hint="workloads that need less than they are allocated, from one day of use"
    >
      <Table
        id="rightsizing"
        caption="Workloads and their recommended allocation"
        rows={here?.rightsizing.filter((r) => r.fit !== "keep" && r.fit !== "unknown")}
        problem={problem}
        rowKey={(r) => r.name}
        most={20}
        sort="-saves"
        address={address}
        href={(r) => to.job(r.name)}
        columns={RIGHTSIZING}
        empty={<p class="dim">{emptyRightsizing(here, unjudged.length)}</p>}
      />
      {unjudged.length > 0 && (
        <p class="dim small" data-testid="unjudged">
          {`${many(unjudged.length, "workload")} not rated: ${reasons.join("; ")}.`}
        </p>
      )}
    </Panel>
  );
}

/** Text for an empty list of recommendations. */
function emptyRightsizing(here: Now | undefined, unjudged: number) {
  if (!here?.standing.gpus) return <Mark>Unknown: no GPU has reported yet.</Mark>;
  if (!here.rightsizing.length) return <Mark tone="ok">No GPU is allocated now.</Mark>;
  const judged = here.rightsizing.length - unjudged;
  if (judged === 0) return <Mark>Unknown: no measurements yet.</Mark>;
  return (
    <Mark tone="ok">{`All ${count(judged)} ${unjudged ? "other " : ""}workloads need what they are allocated.`}</Mark>
  );
}

function AdvicePanel({ advice, isYoung }: { advice?: Advice[]; isYoung: boolean }) {
  return (
    <Panel title="Recommendations" id="advice-panel">
      {!advice ? (
        <Skeleton lines={3} />
      ) : advice.length === 0 ? (
        <p class="dim">
          {isYoung ? <Mark>Unknown until there is a forecast.</Mark> : <Mark tone="ok">No change needed.</Mark>}
        </p>
      ) : (
        <ol class="plan">
          {advice.map((a) => (
            <li key={a.action + a.why}>
              <div>
                <b>
                  {words(a.action)} {many(a.gpus, "GPU")}
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
