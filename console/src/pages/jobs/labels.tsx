// Types, states and labels of jobs.

import { count, percent } from "../../lib/format";
import type { GpuCounts } from "../../lib/types";

export interface Straggler {
  rank: number | null;
  node: string;
  gpu: string;
  uuid: string;
  score: number | null;
  why: string;
  is_gone: boolean;
}

export interface Verdict {
  status: string;
  text: string;
  since: string | null;
  because: string;
  cause: string | null;
  incident: string | null;
}

export interface JobsAnswer {
  jobs: JobLine[];
  total: number;
  states: Record<string, number>;
  problems: string[];
  gpus: GpuCounts;
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
  gpus_not_reporting: number;
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

export interface Used {
  what: string;
  held: number | null;
  used: number | null;
  unit: string;
  share: number | null;
}

export interface Rank {
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

export interface Hardware {
  at: string;
  place: string;
  kind: string;
  code: string;
  cause: string | null;
  text: string;
  rank: number | null;
}

export const rankAndPlace = (h: Hardware) => (h.rank == null ? h.place : `rank ${h.rank} · ${h.place}`);

export interface Report {
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
  verdict: Verdict | null;
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

export const PROBLEM_STATES = ["hung", "stalled", "diverged", "slow", "idle"];

/** No straggler is shown for a job where all ranks wait; its page names the rank they wait for. */
export const STUCK_STATES = ["hung", "stalled"];

export const STATE_ORDER = ["hung", "stalled", "diverged", "slow", "idle", "unknown", "paused", "pending", "running"];

export const BOTTLENECKS: Record<string, string> = {
  compute: "compute",
  memory_bandwidth: "memory bandwidth",
  input: "input",
  communication: "communication",
  straggler: "one rank",
  power_or_heat: "power or heat",
  nothing: "none",
  unknown: "unknown",
};

export const hours = (n: number | null) => (n == null ? "unknown" : n < 10 ? n.toFixed(1) : count(n));

/** No scheduler lists a plain job: its own program reports its name. */
export const kindName = (kind: string) => (kind === "plain" ? "no scheduler" : kind);

export const dimUnknown = (text: string) =>
  text === "unknown" || text === "none" ? <span class="dim">{text}</span> : text;

export const stragglerPlace = (s: Straggler) =>
  [s.node || "an unknown node", s.gpu && `GPU ${s.gpu}`].filter(Boolean).join(" ");

/** A straggler is slower than the others; a rank that never arrives blocks them, and one that is gone is lost. */
export const stragglerKind = (s: Straggler) =>
  s.is_gone ? "lost rank" : s.score == null ? "blocking rank" : "straggler";

export const describeSlowness = (s: Straggler) =>
  s.is_gone
    ? "gone, other ranks wait for it"
    : s.score == null
      ? "other ranks wait for it"
      : `${percent(100 * s.score)} slower than its peers`;
