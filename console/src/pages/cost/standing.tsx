import { Tile } from "../../components/parts";
import type { Column } from "../../components/table";
import { ago, count, day, many, percent } from "../../lib/format";
import type { Forecast } from "./forecast";

export interface Now {
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

export const wait = (s: number | null) => (s == null ? "unknown" : s < 1 ? "none" : ago(1000 * s));

export const ROOMS: Column<Now["standing"]["rooms"][number]>[] = [
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

export const WAITS: Column<Now["waits"][number]>[] = [
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

export const FITS: Record<string, string> = {
  give_back: "give it back",
  fewer_gpus: "fewer GPUs",
  mig: "MIG",
  mps: "MPS",
  time_slicing: "time slicing",
  smaller_gpu: "a smaller GPU",
  smaller_slice: "a smaller slice",
};

export function Figures({ here, made }: { here: Now; made?: Forecast }) {
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
