// Free capacity now: summary tiles and table columns.

import { Tile } from "../../components/parts";
import type { Column } from "../../components/table";
import { count, dateTime, humanise, percentOf, plural, shortDuration } from "../../lib/format";
import type { GpuCounts } from "../../lib/types";
import type { Forecast } from "./forecast";

export interface CapacityNow {
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
  gpus: GpuCounts;
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

export const formatWait = (s: number | null) => (s == null ? "unknown" : s < 1 ? "none" : shortDuration(1000 * s));

export const ROOMS: Column<CapacityNow["standing"]["rooms"][number]>[] = [
  { id: "gpus", title: "GPUs", value: (r) => r.gpus },
  { id: "jobs", title: "Jobs that fit", numeric: true, value: (r) => r.jobs },
  {
    id: "stranded",
    title: "Stranded",
    numeric: true,
    hint: "free GPUs that no job of this size can use",
    value: (r) => r.stranded_gpus,
    cell: (r) => (r.stranded_gpus ? plural(r.stranded_gpus, "GPU") : "none"),
  },
];

export const WAITS: Column<CapacityNow["waits"][number]>[] = [
  { id: "gpus", title: "GPUs", value: (w) => w.gpus },
  { id: "waiting", title: "Pending", numeric: true, value: (w) => w.waiting },
  {
    id: "longest",
    title: "Longest",
    numeric: true,
    value: (w) => w.longest_seconds,
    cell: (w) => formatWait(w.longest_seconds),
  },
  {
    id: "p95",
    title: "p95 wait (started jobs)",
    numeric: true,
    value: (w) => w.p95_seconds,
    cell: (w) => formatWait(w.p95_seconds),
  },
];

export const FITS: Record<string, string> = {
  give_back: "release",
  fewer_gpus: "fewer GPUs",
  mig: "MIG",
  mps: "MPS",
  time_slicing: "time slicing",
  smaller_gpu: "a smaller GPU",
  smaller_slice: "a smaller MIG instance",
};

export function CapacityFigures({ capacity, forecast }: { capacity: CapacityNow; forecast?: Forecast }) {
  const { standing, use, gpus } = capacity;
  return (
    <section class="tiles even" aria-label="summary of capacity">
      <Tile id="tile-capacity" name="GPUs" value={count(standing.gpus)} meaning={describeService(gpus)} />
      <Tile
        id="tile-heldnow"
        name="Allocated"
        value={percentOf(gpus.allocated + gpus.free ? gpus.allocated / (gpus.allocated + gpus.free) : null)}
        meaning={`${plural(standing.held_gpus, "GPU")} · ${describeUse(use.used_gpus)}`}
      />
      <Tile
        id="tile-free"
        name="Free"
        value={standing.gpus ? count(standing.free_gpus) : "unknown"}
        meaning={describeFree(standing)}
        tone={standing.gpus && standing.free_gpus === 0 ? "warn" : undefined}
      />
      <Tile
        id="tile-full"
        name="Full on"
        {...fullOnTile(forecast)}
        tone={forecast?.full?.is_full_now ? "bad" : undefined}
      />
      <Tile
        id="tile-need"
        name="To stay below 80 %"
        value={
          forecast?.need ? (forecast.need.likely_gpus ? `+${count(forecast.need.likely_gpus)}` : "enough") : "unknown"
        }
        meaning={
          forecast?.need
            ? `GPUs to add; +${count(forecast.need.sure_gpus)} for 90 % confidence`
            : (forecast?.reason ?? "no forecast yet")
        }
      />
    </section>
  );
}

function describeService({ gpus, allocated, free, ...others }: GpuCounts): string {
  const notInService = Object.entries(others).filter(([, n]) => n > 0);
  if (notInService.length) return notInService.map(([state, n]) => `${count(n)} ${humanise(state)}`).join(" · ");
  return gpus ? "all in service" : "no GPU has reported yet";
}

function describeUse(gpus: number | null): string {
  if (gpus == null) return "utilisation not measured";
  return `use equals ${gpus < 10 ? gpus.toFixed(1) : count(gpus)} GPUs`;
}

function describeFree({ gpus, free_gpus, stranded_share }: CapacityNow["standing"]): string {
  if (!gpus) return "no GPU has reported yet";
  if (stranded_share) return `${percentOf(stranded_share)} stranded for the largest job`;
  return free_gpus ? "whole nodes available" : "no free GPU";
}

function fullOnTile(forecast?: Forecast): { value: string; meaning: string } {
  const full = forecast?.full;
  if (!full) return { value: "unknown", meaning: forecast?.reason ?? "no forecast yet" };
  if (full.is_full_now) return { value: "now", meaning: "no free GPU" };
  const probability = `probability at most ${percentOf(full.likely)}`;
  return {
    value: full.full_at ? dateTime(full.full_at).slice(0, 10) : "not in range",
    meaning: full.earliest ? `earliest ${dateTime(full.earliest).slice(5, 16)} · ${probability}` : probability,
  };
}
