// Key figures of the fleet.

import { Skeleton, Tile } from "../../components/parts";
import { useRequest } from "../../lib/api";
import { count, percent, plural, watts } from "../../lib/format";
import type { Summary } from "../../lib/live_types";
import { to } from "../../lib/router";
import { now } from "../../lib/store";

interface FullForecast {
  reason: string | null;
  full?: { full_at: string | null; earliest: string | null; latest: string | null } | null;
  sentence: string | null;
}

export function Tiles({
  s,
  open,
  openCount,
  hourly,
}: {
  s?: Summary;
  open?: { severity: string; state: string }[];
  openCount?: string;
  hourly: (gpus: number) => string;
}) {
  const { answer, problem } = useRequest<FullForecast>(
    s ? "/api/capacity/forecast?horizon=30d" : "",
    Math.floor(now() / 3600000),
  );
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
  const problemCounts = [
    [s.down, "down"],
    [s.event, "with active events"],
    [s.throttled, "throttled"],
    [s.silent, "not reporting"],
    [s.unknown, "unknown"],
    [s.cordoned, "on cordoned nodes"],
  ] as const;
  const problems = problemCounts.filter(([n]) => n > 0).map(([n, text]) => `${count(n)} ${text}`);
  const countOpen = (severity: string) => open?.filter((i) => i.severity === severity).length ?? 0;
  const severities = (["critical", "warning", "info"] as const).filter(countOpen).map((t) => `${countOpen(t)} ${t}`);
  const reportingGpus = s.gpus - s.silent - s.unknown;
  const noneReports = s.gpus > 0 && reportingGpus === 0;
  const silentNodes = s.nodes - s.nodes_reporting;
  return (
    <div class="tiles steady" data-testid="tiles">
      <Tile
        id="tile-gpus"
        name={`GPUs, ${plural(s.nodes, "node")}`}
        value={count(s.gpus)}
        meaning={[
          ...problems,
          silentNodes && !s.silent ? `${plural(silentNodes, "node")} not reporting` : "",
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
        value={s.held == null || noneReports || !s.gpus ? "unknown" : count(s.held_idle)}
        href={s.held_idle ? to.fleet("state:held_idle") : undefined}
        meaning={describeIdle(s, noneReports, hourly)}
      />
      <Tile
        id="tile-power"
        name="Power"
        value={watts(s.power_watts)}
        meaning={
          s.power_watts == null
            ? "no reading"
            : `${watts(s.power_watts / Math.max(1, reportingGpus))} each · ${count(s.throttled)} throttled`
        }
      />
      <Tile
        id="tile-incidents"
        name="Incidents"
        value={openCount ?? "unknown"}
        meaning={severities.join(" · ") || "none open"}
        tone={countOpen("critical") ? "bad" : countOpen("warning") ? "warn" : ""}
        href="/incidents"
      />
      <Tile id="tile-full" name="Full on" {...fullOnTile(answer, problem)} />
    </div>
  );
}

function fullOnTile(answer?: FullForecast, problem?: { message: string; status: number }) {
  if (problem) return { value: "unknown", meaning: problem.message };
  if (answer?.reason) return { value: "unknown", meaning: answer.reason };
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

function describeIdle(s: Summary, noneReports: boolean, hourly: (gpus: number) => string): string {
  if (!s.gpus) return "no GPU has reported yet";
  if (noneReports) return "no GPU is reporting";
  if (s.held == null) return "holders unknown";
  const free = `${count(s.free)} free`;
  if (!s.held_idle) return `of ${count(s.held)} allocated · ${free}`;
  return `${hourly(s.held_idle)} / h · ${plural(s.idle_teams, "team")} · ${free}`;
}
