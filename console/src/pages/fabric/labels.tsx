// Types, states and labels of links.

import type { Row } from "../../components/portmap_layout";
import { count } from "../../lib/format";
import { to } from "../../lib/router";

export interface FabricMap {
  now: string;
  window: string;
  source: "sweep" | "hosts" | null;
  swept_at: string | null;
  problem: string;
  states: string[];
  counts: {
    links: number;
    down: number;
    slow: number;
    unknown: number;
    errs: number;
    waits: number;
    uncounted: number;
    jobs: number;
    mute_nodes: number;
  };
  spines: { name: string; state: string; links: number; trouble: string[] }[];
  rows: Row[];
}

export interface Link {
  id: string;
  kind: "host" | "trunk";
  row: string | null;
  switch: string | null;
  switch_port: number | null;
  peer: string;
  device: string | null;
  port: number;
  state: string;
  why: string;
  gbps: number | null;
  down_since: string | null;
  load: number | null;
  errors: number | null;
  errs: boolean;
  waits: boolean;
  wait_per_second: number | null;
  wait_times: number | null;
  discards: number | null;
  jobs: string[];
}

export interface Port {
  window: string;
  link: Link;
  series: { traffic: string; errors: string; wait: string };
  counters: { name: string; grown: number; meaning: string | null; action: string | null }[];
  incidents: { id: string; title: string; severity: string }[];
}

export const WINDOWS = [
  ["15m", "15 min"],
  ["1h", "1 h"],
  ["6h", "6 h"],
] as const;

const DOWN = ["down", "gone", "critical", "missing"];

export function linkTone(link: Link): string {
  if (link.errs || DOWN.includes(link.state)) return "critical";
  if (link.state === "slow" || link.waits) return "warning";
  return link.state === "healthy" ? "ok" : "";
}

export function stateText({ state, errs, waits }: Link): string {
  const isUp = state === "healthy" && !errs && !waits;
  const parts = [state === "healthy" ? isUp && "up" : state, errs && "errors", waits && "congested"];
  return parts.filter(Boolean).join(", ");
}

/** The mark of a link that is up but has errors or is congested. */
export function linkGlyph({ state, errs, waits }: Link): string | undefined {
  if (state !== "healthy") return undefined;
  if (errs) return "◆";
  return waits ? "‖" : undefined;
}

export const linkName = (link: Link) =>
  link.kind === "host"
    ? `${link.peer} ${link.device}${link.port > 1 ? `/${link.port}` : ""}`
    : `${link.peer} port ${link.port}`;

export const switchPort = (link: Link) => (link.switch ? `${link.switch} port ${link.switch_port}` : null);

export const formatRate = (gbps: number | null) => (gbps == null ? "unknown" : `${count(gbps)} Gb/s`);

export const formatTimes = (n: number) => (n < 0.1 ? "< 0.1×" : `${Number(n.toPrecision(2))}×`);

export function Jobs({ names, most, trunk }: { names: string[]; address?: URL; most: number; trunk: boolean }) {
  if (!names.length) return <span class="dim">none</span>;
  return (
    <>
      {trunk && <span class="dim">may carry </span>}
      {names.slice(0, most).map((n, i) => (
        <>
          {i > 0 && ", "}
          <a key={n} href={to.job(n)}>
            {n}
          </a>
        </>
      ))}
      {names.length > most && (
        <span class="dim" title={names.join("\n")}>
          {" "}
          and {names.length - most} more
        </span>
      )}
    </>
  );
}
