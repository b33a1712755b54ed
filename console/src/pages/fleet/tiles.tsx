// Key figures of the fleet.

import { Skeleton, Tile } from "../../components/parts";
import { useAsk } from "../../lib/api";
import { count, dollars, many, percent, watts } from "../../lib/format";
import type { Summary } from "../../lib/live_types";
import { to } from "../../lib/router";
import { now } from "../../lib/store";

interface Full {
  reason: string | null;
  full?: { full_at: string | null; earliest: string | null; latest: string | null };
  sentence: string;
}

export function Tiles({
  s,
  open,
  price,
}: {
  s?: Summary;
  open?: { severity: string; state: string }[];
  price: number;
}) {
  const { answer, problem } = useAsk<Full>(s ? "/api/capacity/forecast?horizon=30d" : "", Math.floor(now() / 3600000));
  if (!s)
    return (
      <div class="tiles steady">
        {[1, 2, 3, 4, 5, 6].map((i) => (
          <div class="panel tile" key={i}>
            <Skeleton lines={3} />
          </div>
        ))}
      </div>
    );
  const sick = [
    [s.down, "down"],
    [s.event, "with active events"],
    [s.throttled, "throttled"],
    [s.silent, "not reporting"],
    [s.unknown, "unknown"],
  ] as const;
  const trouble = sick.filter(([n]) => n > 0).map(([n, text]) => `${count(n)} ${text}`);
  const by = (severity: string) => open?.filter((i) => i.severity === severity).length ?? 0;
  const tiers = (["critical", "warning", "info"] as const).filter(by).map((t) => `${by(t)} ${t}`);
  const seen = s.gpus - s.silent - s.unknown;
  const isBlind = s.gpus > 0 && seen === 0;
  const silent = s.nodes - s.nodes_reporting;
  return (
    <div class="tiles steady" data-testid="tiles">
      <Tile
        id="tile-gpus"
        name={`GPUs, ${many(s.nodes, "node")}`}
        value={count(s.gpus)}
        meaning={[
          ...trouble,
          silent && !s.silent ? `${many(silent, "node")} not reporting` : "",
          `${count(s.ok + s.held_idle)} healthy`,
        ]
          .filter(Boolean)
          .join(" · ")}
      />
      <Tile
        id="tile-working"
        name="SM active"
        value={percent(s.working_percent)}
        meaning={`allocated ${percent(s.allocated_percent)} · GPU_UTIL ${percent(s.gpu_util_percent)}`}
      />
      <Tile
        id="tile-idle"
        name="Allocated, idle"
        value={s.held == null || isBlind || !s.gpus ? "unknown" : count(s.held_idle)}
        href={s.held_idle ? to.fleet("state:held_idle") : undefined}
        meaning={idleMeaning(s, isBlind, price)}
      />
      <Tile
        id="tile-power"
        name="Power"
        value={watts(s.power_watts)}
        meaning={
          s.power_watts == null
            ? "no reading"
            : `${watts(s.power_watts / Math.max(1, seen))} each · ${count(s.throttled)} throttled`
        }
      />
      <Tile
        id="tile-incidents"
        name="Incidents"
        value={open ? count(open.length) : "unknown"}
        meaning={tiers.join(" · ") || "none open"}
        tone={by("critical") ? "bad" : by("warning") ? "warn" : ""}
        href="/incidents"
      />
      <Tile id="tile-full" name="Full on" {...fullness(answer, problem)} />
    </div>
  );
}

function fullness(answer?: Full, problem?: { message: string; status: number }) {
  if (problem || answer?.reason)
    return { value: "unknown", meaning: problem ? problem.message : "not enough samples yet" };
  if (!answer) return { value: "…", meaning: "loading the forecast" };
  if (!answer.full) return { value: "unknown", meaning: "no GPU is reporting" };
  const { full_at, earliest, latest } = answer.full;
  const short = (iso: string) => new Date(iso).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  if (!full_at)
    return {
      value: "not in 30 d",
      meaning: earliest ? `80 %: not before ${short(earliest)}` : "at the current growth rate",
    };
  return {
    value: short(full_at),
    meaning: `80 %: ${earliest ? short(earliest) : "now"} – ${latest ? short(latest) : "later"}`,
  };
}

function idleMeaning(s: Summary, isBlind: boolean, price: number): string {
  if (!s.gpus) return "no GPU has reported yet";
  if (isBlind) return "no GPU is reporting";
  if (s.held == null) return "holders unknown";
  const free = `${count(s.free)} free`;
  if (!s.held_idle) return `of ${count(s.held)} allocated · ${free}`;
  return `${dollars(s.held_idle * price)} / h · ${many(s.idle_teams, "team")} · ${free}`;
}
