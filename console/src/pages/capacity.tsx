// Capacity: when the fleet is full with how sure that is, what is free for whom now, and what a change would bring.

import { useMemo, useState } from "preact/hooks";
import { Chart } from "../components/chart";
import { Choice, Empty, Facts, Mark, Panel, Problem, Select, Skeleton, Tile } from "../components/parts";
import { type Column, Table } from "../components/table";
import { ask, useAsk } from "../lib/api";
import { ago, count, day, many, percent, percentOf, words } from "../lib/format";
import type { Line } from "../lib/lines";
import { type PageProps, param, put, to } from "../lib/router";
import { usePulse } from "../lib/store";

interface Point {
  time: string;
  mean: number;
  low: number;
  high: number;
}
interface Forecast {
  about: string;
  reason: string | null;
  capacity_gpus: number | null;
  sentence?: string;
  model: string;
  forecast: Point[];
  interval: number;
  step: string;
  notes: string[];
  backtest: { wape: number | null; naive_wape: number | null; coverage: number | null; origins: number };
  history: { from: string; to: string; steps: number; gaps: number; recent: { time: string; value: number | null }[] };
  full?: {
    is_full_now: boolean;
    full_at: string | null;
    earliest: string | null;
    latest: string | null;
    likely: number;
  };
  need?: { target: number; likely_gpus: number; sure_gpus: number };
}
interface Now {
  standing: {
    gpus: number;
    in_service_gpus: number;
    held_gpus: number;
    free_gpus: number;
    rooms: { gpus: number; jobs: number; usable_gpus: number; stranded_gpus: number }[];
    stranded_share: number | null;
    out_of_service: { name: string; gpus: number; why?: string }[];
  };
  waits: {
    gpus: number;
    waiting: number;
    longest_seconds: number | null;
    started: number;
    p50_seconds: number | null;
    p95_seconds: number | null;
  }[];
  use: { held_gpus: number; used_gpus: number | null };
  rightsizing: {
    name: string;
    gpus: number;
    model: string;
    fit: string;
    why: string;
    profile: string;
    saves_gpus: number;
  }[];
}
interface Advice {
  action: string;
  gpus: number;
  why: string;
  confidence: number | null;
}
interface Spread {
  jobs: number;
  mean: number | null;
  p50: number | null;
  p95: number | null;
  max: number | null;
}
interface WhatIf {
  layout: string;
  since: number;
  until: number;
  change: string;
  assumes: string[];
  jobs: Record<string, number>;
  recorded: { wait: Spread };
  before: Side;
  after: Side;
  unknown_models: Record<string, number>;
}
interface Side {
  gpus: number;
  utilisation: number | null;
  peak_gpus: number;
  wait: Spread & { by_gpus: Record<string, Spread> };
  never_fits: { jobs: number; gpus: number[] };
}
const WINDOWS = [
  ["6h", "6 hours"],
  ["1d", "day"],
  ["7d", "week"],
  ["2w", "2 weeks"],
] as const;
const HORIZONS = [
  ["1d", "1 day"],
  ["7d", "1 week"],
  ["4w", "4 weeks"],
  ["12w", "12 weeks"],
] as const;
const seconds = (at: string) => Date.parse(at) / 1000;
const wait = (s: number | null) => (s == null ? "unknown" : s < 1 ? "none" : ago(1000 * s));
const ROOMS: Column<Now["standing"]["rooms"][number]>[] = [
  { id: "gpus", title: "GPUs", value: (r) => r.gpus },
  { id: "jobs", title: "Jobs fit", numeric: true, value: (r) => r.jobs },
  {
    id: "stranded",
    title: "Stranded",
    numeric: true,
    value: (r) => r.stranded_gpus,
    cell: (r) => (r.stranded_gpus ? `${count(r.stranded_gpus)} GPUs` : "none"),
  },
];
const WAITS: Column<Now["waits"][number]>[] = [
  { id: "gpus", title: "GPUs", value: (w) => w.gpus },
  { id: "waiting", title: "Wait now", numeric: true, value: (w) => w.waiting },
  {
    id: "longest",
    title: "Longest",
    numeric: true,
    value: (w) => w.longest_seconds,
    cell: (w) => wait(w.longest_seconds),
  },
  { id: "p95", title: "p95 of started", numeric: true, value: (w) => w.p95_seconds, cell: (w) => wait(w.p95_seconds) },
];

const FITS: Record<string, string> = {
  give_back: "give it back",
  fewer_gpus: "fewer GPUs",
  mig: "MIG",
  mps: "MPS",
  time_slicing: "time slicing",
  smaller_gpu: "a smaller GPU",
  smaller_slice: "a smaller slice",
};

export function CapacityView({ address, theme }: PageProps) {
  const horizon = param(address, "horizon", "7d");
  const beat = usePulse(60000);
  const slowly = Math.floor(beat / 5);
  const { answer: made, problem } = useAsk<Forecast>(`/api/capacity/forecast?horizon=${horizon}`, slowly);
  const { answer: advised } = useAsk<{ advice: Advice[] }>(`/api/capacity/advice?horizon=${horizon}`, slowly);
  const { answer: here, problem: unseen } = useAsk<Now>("/api/capacity/now", beat);
  const add = Number(param(address, "add", "0")) || 0;
  const capacity = made?.capacity_gpus == null ? null : made.capacity_gpus + add;
  const unjudged = here?.rightsizing.filter((r) => r.fit === "unknown") ?? [];
  return (
    <>
      {here && <Figures here={here} made={made} />}
      <div class="columns">
        <div>
          <Panel
            title="When is it full"
            id="forecast-panel"
            hint={made && !made.reason && `GPUs asked for, held and waiting · ${percent(100 * made.interval)} interval`}
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
              <Empty title="Too young for a forecast">{made.reason}</Empty>
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
                  {made.backtest.wape == null
                    ? "Not tested yet: the history is too short."
                    : `Tested on ${many(made.backtest.origins, "past forecast")}: wrong by ${percent(100 * made.backtest.wape)}, where "as before" is wrong by ${percentOf(made.backtest.naive_wape)}; its interval held ${percentOf(made.backtest.coverage)} of the time.`}{" "}
                  From {many(made.history.steps, "step")} of {made.step} since {day(made.history.from)}.{" "}
                  {made.notes.join(" · ")}
                </p>
              </>
            )}
          </Panel>
          <Replay address={address} />
          <Panel title="Who would do with less" id="rightsizing-panel" hint="what would suffice, from a day of use">
            <Table
              id="rightsizing"
              caption="Workloads and what would do for them"
              rows={here?.rightsizing.filter((r) => r.fit !== "keep" && r.fit !== "unknown")}
              problem={unseen}
              rowKey={(r) => r.name}
              most={20}
              sort="-saves"
              address={address}
              href={(r) => to.job(r.name)}
              columns={[
                {
                  id: "name",
                  title: "Workload",
                  value: (r) => r.name,
                  cell: (r) => <a href={to.job(r.name)}>{r.name}</a>,
                },
                { id: "gpus", title: "Holds", numeric: true, value: (r) => r.gpus, cell: (r) => many(r.gpus, "GPU") },
                {
                  id: "fit",
                  title: "Would do",
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
              ]}
              empty={
                <p class="dim">
                  {!here?.standing.gpus ? (
                    <Mark>Unknown: no GPU was found yet.</Mark>
                  ) : !here.rightsizing.length ? (
                    <Mark tone="ok">Nobody holds a GPU now.</Mark>
                  ) : unjudged.length === here.rightsizing.length ? (
                    <Mark>Nothing is known yet.</Mark>
                  ) : (
                    <Mark tone="ok">{`All ${count(here.rightsizing.length - unjudged.length)} ${unjudged.length ? "others" : "workloads"} use what they hold.`}</Mark>
                  )}
                </p>
              }
            />
            {unjudged.length > 0 && (
              <p
                class="dim small"
                data-testid="unjudged"
              >{`${many(unjudged.length, "workload")} not judged: ${[...new Set(unjudged.map((r) => r.why))].join("; ")}.`}</p>
            )}
          </Panel>
        </div>
        <aside>
          <Panel title="What would help" id="advice-panel">
            {!advised ? (
              <Skeleton lines={3} />
            ) : advised.advice.length === 0 ? (
              <p class="dim">
                {made?.reason ? (
                  <Mark>Unknown until there is a forecast.</Mark>
                ) : (
                  <Mark tone="ok">Nothing needs to change.</Mark>
                )}
              </p>
            ) : (
              <ol class="plan">
                {advised.advice.map((a) => (
                  <li key={a.action + a.why}>
                    <div>
                      <b>
                        {words(a.action)} {many(a.gpus, "GPU")}
                      </b>
                      <p>
                        {a.why}
                        {a.confidence != null && ` · ${percent(100 * a.confidence)} sure`}
                      </p>
                    </div>
                  </li>
                ))}
              </ol>
            )}
          </Panel>
          <Panel title="Room for a job of" id="rooms-panel" hint="free now, by size">
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
          <Panel title="Waiting" id="waits-panel" hint="by size of job">
            {!here ? (
              <Skeleton lines={3} />
            ) : here.waits.length === 0 ? (
              <p class="dim">No scheduler tells of jobs that wait.</p>
            ) : (
              <Table
                id="waits"
                caption="Jobs that wait, by size"
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

function Figures({ here, made }: { here: Now; made?: Forecast }) {
  const { standing, use } = here;
  const out = standing.gpus - standing.in_service_gpus;
  return (
    <section class="tiles even" aria-label="capacity in figures">
      <Tile
        id="tile-capacity"
        name="GPUs"
        value={count(standing.gpus)}
        meaning={out ? `${count(out)} out of service` : standing.gpus ? "all in service" : "none was found yet"}
      />
      <Tile
        id="tile-heldnow"
        name="Held"
        value={percent(standing.in_service_gpus ? (100 * standing.held_gpus) / standing.in_service_gpus : null)}
        meaning={`${many(standing.held_gpus, "GPU")} · ${use.used_gpus == null ? "use not measured" : `${use.used_gpus < 10 ? use.used_gpus.toFixed(1) : count(use.used_gpus)} GPUs' worth of work`}`}
      />
      <Tile
        id="tile-free"
        name="Free"
        value={standing.gpus ? count(standing.free_gpus) : "unknown"}
        meaning={
          !standing.gpus
            ? "no GPU was found yet"
            : standing.stranded_share
              ? `${percent(100 * standing.stranded_share)} stranded for the largest job`
              : standing.free_gpus
                ? "whole nodes where jobs need them"
                : "nothing is left"
        }
        tone={standing.gpus && standing.free_gpus === 0 ? "warn" : undefined}
      />
      <Tile
        id="tile-full"
        name="Full on"
        value={
          made?.full
            ? made.full.is_full_now
              ? "now"
              : made.full.full_at
                ? day(made.full.full_at).slice(0, 10)
                : "not in sight"
            : "unknown"
        }
        meaning={
          made?.full
            ? made.full.is_full_now
              ? "nothing is left"
              : made.full.earliest
                ? `may be full from ${day(made.full.earliest).slice(5, 16)} · chance at most ${percent(100 * made.full.likely)}`
                : `chance at most ${percent(100 * made.full.likely)}`
            : "no forecast yet"
        }
        tone={made?.full?.is_full_now ? "bad" : undefined}
      />
      <Tile
        id="tile-need"
        name="To stay below 80 %"
        value={made?.need ? (made.need.likely_gpus ? `+${count(made.need.likely_gpus)}` : "enough") : "unknown"}
        meaning={made?.need ? `GPUs; +${count(made.need.sure_gpus)} to be 90 % sure` : "no forecast yet"}
      />
    </section>
  );
}

function ForecastChart({
  made,
  capacity,
  add,
  theme,
}: {
  made: Forecast;
  capacity: number | null;
  add: number;
  theme: string;
}) {
  const { times, lines } = useMemo(() => {
    const past = made.history.recent;
    const times = [...past.map((p) => seconds(p.time)), ...made.forecast.map((p) => seconds(p.time))];
    const n = past.length;
    const all = <T,>(value: T) => times.map(() => value);
    const ahead = (pick: (p: Point) => number) => [
      ...past.map((p, i) => (i === n - 1 ? p.value : null)),
      ...made.forecast.map(pick),
    ];
    const lines: Line[] = [
      {
        label: "Asked for",
        unit: "GPUs",
        tone: "dim",
        values: [...past.map((p) => p.value), ...made.forecast.map(() => null)],
      },
      {
        label: "Forecast",
        unit: "GPUs",
        tone: "accent",
        values: ahead((p) => p.mean),
        low: ahead((p) => Math.max(0, p.low)),
        high: ahead((p) => p.high),
      },
      ...(made.capacity_gpus != null
        ? [
            {
              label: "Fleet",
              unit: "GPUs",
              tone: "bad" as const,
              dashed: true,
              values: all(made.capacity_gpus as number | null),
            },
          ]
        : []),
      ...(capacity != null && add
        ? [
            {
              label: `What if ${add > 0 ? "+" : "−"}${Math.abs(add)}`,
              unit: "GPUs",
              tone: "warn" as const,
              dashed: true,
              values: all(capacity as number | null),
            },
          ]
        : []),
    ];
    return { times, lines };
  }, [made, capacity, add]);
  return (
    <Chart
      id="forecast-chart"
      name="GPUs asked for, with forecast"
      times={times}
      lines={lines}
      theme={theme}
      height={280}
    />
  );
}

/** The same forecast against another size of the fleet; only its own interval is read. */
function WhatIfLine({ made, capacity, add }: { made: Forecast; capacity: number | null; add: number }) {
  if (capacity == null) return null;
  const cross = (pick: (p: Point) => number) => made.forecast.find((p) => pick(p) >= capacity)?.time;
  const full = cross((p) => p.mean);
  const early = cross((p) => p.high);
  const late = cross((p) => p.low);
  return (
    <form class="whatif" onSubmit={(e) => e.preventDefault()} data-testid="whatif">
      <label>
        What if the fleet had{" "}
        <input
          type="number"
          class="narrow number"
          value={String(add)}
          step={8}
          min={-(made.capacity_gpus ?? 0)}
          aria-label="GPUs more or fewer"
          data-testid="whatif-add"
          onInput={(e) => put("add", e.currentTarget.value === "0" ? null : e.currentTarget.value)}
        />{" "}
        GPUs more
      </label>
      <span data-testid="whatif-answer">
        <b>
          {count(capacity)} GPUs:{" "}
          {capacity <= 0
            ? "nothing would be left"
            : full
              ? `full on ${day(full).slice(0, 16)}`
              : "not full in this time"}
        </b>
        {capacity > 0 && (
          <span class="dim">
            {" "}
            · {early ? `may be from ${day(early).slice(0, 16)}` : "surely not"}
            {late ? `, surely from ${day(late).slice(0, 16)}` : ""}
          </span>
        )}
      </span>
    </form>
  );
}

function Replay({ address }: { address: URL }) {
  const [jobs, read] = useState<{ name: string; text: string } | null>(null);
  const [found, show] = useState<WhatIf | null>(null);
  const [problem, say] = useState("");
  const [busy, work] = useState(false);
  const add = Number(param(address, "add", "0")) || 0;
  const policy = param(address, "policy", "backfill");
  const window = param(address, "window", "1d");
  const run = async (event: Event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const racks = String(form.get("racks") ?? "")
      .split(/[\s,]+/)
      .filter(Boolean);
    work(true);
    say("");
    try {
      show(
        await ask<WhatIf>("/api/capacity/whatif", "POST", {
          jobs: jobs?.text,
          window,
          add: Math.max(0, add),
          remove: Math.max(0, -add),
          remove_racks: racks,
          policy,
        }),
      );
    } catch (error) {
      say((error as Error).message);
      show(null);
    }
    work(false);
  };
  return (
    <Panel title="What if: replay recorded jobs" id="replay-panel" hint="on this fleet as it is and as it might be">
      <form class="replay" onSubmit={run}>
        {!jobs && (
          <label>
            this hub's jobs of the last{" "}
            <Select
              label="how long"
              id="replay-window"
              value={window}
              options={WINDOWS}
              choose={(w) => put("window", w === "1d" ? null : w)}
            />
          </label>
        )}
        <label class="file">
          or jobs of a file{" "}
          <input
            type="file"
            accept=".csv,.txt,text/*"
            aria-label="Recorded jobs, from sacct or as CSV"
            data-testid="jobs-file"
            onChange={async (e) => {
              const file = e.currentTarget.files?.[0];
              read(file ? { name: file.name, text: await file.text() } : null);
            }}
          />
        </label>
        <label>
          {add >= 0 ? "GPUs more" : "GPUs fewer"}{" "}
          <input
            type="number"
            class="number"
            step={8}
            value={String(add)}
            aria-label="GPUs more or fewer in the replay"
            onInput={(e) => put("add", e.currentTarget.value === "0" ? null : e.currentTarget.value)}
          />
        </label>
        <label>
          without racks <input name="racks" class="racks" placeholder="r01 r02" aria-label="Racks to take away" />
        </label>
        <Choice
          label="who may start"
          options={[
            ["backfill", "backfill"],
            ["fifo", "in order"],
          ]}
          value={policy}
          choose={(p) => put("policy", p === "backfill" ? null : p)}
        />
        <button type="submit" class="primary" disabled={busy} data-testid="replay-run">
          {busy ? "Replaying…" : "Replay"}
        </button>
      </form>
      {!jobs && (
        <p class="dim small">
          A scheduler knows its jobs of months, and how long each waited:{" "}
          <code>sacct -aDXP -S 2026-10-01 -o JobID,Submit,Start,End,AllocTRES</code>
        </p>
      )}
      {problem && <Problem>{problem}</Problem>}
      {found && (
        <div data-testid="replay-answer">
          <p class="answer">
            {found.change}: p95 of waiting {wait(found.before.wait.p95)} → <b>{wait(found.after.wait.p95)}</b>, GPUs in
            use {percentOf(found.before.utilisation)} → {percentOf(found.after.utilisation)}.
          </p>
          <Table
            id="replay"
            caption="Waiting before and after"
            rows={Object.keys(found.before.wait.by_gpus)}
            rowKey={(s) => s}
            empty={null}
            columns={[
              { id: "shape", title: "Job of", value: (s) => s, cell: (s) => `${s} GPUs` },
              { id: "jobs", title: "Jobs", numeric: true, value: (s) => found.before.wait.by_gpus[s].jobs },
              {
                id: "before",
                title: "p95 wait as it is",
                numeric: true,
                value: (s) => found.before.wait.by_gpus[s].p95,
                cell: (s) => wait(found.before.wait.by_gpus[s].p95),
              },
              {
                id: "after",
                title: "p95 wait then",
                numeric: true,
                value: (s) => found.after.wait.by_gpus[s]?.p95,
                cell: (s) => wait(found.after.wait.by_gpus[s]?.p95 ?? null),
              },
            ]}
          />
          <Facts
            rows={[
              [
                "Replayed",
                `${many(found.jobs.jobs, "job")}${found.layout === "this hub" ? ` that this hub saw from ${day(new Date(1000 * found.since).toISOString())} to ${day(new Date(1000 * found.until).toISOString())}; how long they had waited is known of ${found.jobs.wait_known ? count(found.jobs.wait_known) : "none"}` : ` of a table (${found.layout})`}`,
              ],
              [
                "Recorded",
                found.recorded.wait.jobs
                  ? `p95 of waiting ${wait(found.recorded.wait.p95)} over ${many(found.recorded.wait.jobs, "job")}`
                  : null,
              ],
              [
                "Never fits",
                found.after.never_fits.jobs
                  ? `${many(found.after.never_fits.jobs, "job")} of ${found.after.never_fits.gpus.join(", ")} GPUs`
                  : null,
              ],
              ["Assumes", found.assumes.join("; ")],
            ]}
          />
        </div>
      )}
    </Panel>
  );
}
