// What the charts ask, in PromQL; each works on any Prometheus with dcgm-exporter's names.

import type { Strip } from "./strips";
import type { Card, Member, Place } from "./types";
import type { Mark } from "./strips";

const quoted = (text: string) => JSON.stringify(text);
export function selector(place: Place): string {
  if (place.gpu) return `{UUID=${quoted(place.gpu)}}`;
  return place.node ? `{Hostname=${quoted(place.node)}}` : "";
}
export function gpuStrips(place: Place): Strip[] {
  const s = selector(place);
  return [
    { label: "SM active", unit: "%", expr: `100 * avg(DCGM_FI_PROF_SM_ACTIVE${s})` },
    { label: "Power", unit: "W", expr: `avg(DCGM_FI_DEV_POWER_USAGE${s})` },
    { label: "Temperature", unit: "°C", expr: `max(DCGM_FI_DEV_GPU_TEMP${s})` },
    { label: "SM clock", unit: "MHz", expr: `avg(DCGM_FI_DEV_SM_CLOCK${s})` },
    { label: "Memory used", unit: "GiB", expr: `avg(DCGM_FI_DEV_FB_USED${s}) / 1024`, tone: "ok" },
    { label: "PCIe", unit: "B/s", expr: `avg(DCGM_FI_PROF_PCIE_TX_BYTES${s}) + avg(DCGM_FI_PROF_PCIE_RX_BYTES${s})`, tone: "ok" },
    { label: "NVLink", unit: "B/s", expr: `avg(DCGM_FI_PROF_NVLINK_TX_BYTES${s}) + avg(DCGM_FI_PROF_NVLINK_RX_BYTES${s})`, tone: "ok" },
  ];
}
const held = (m: string) => `(${m}{pod!=""} or ${m}{hpc_job!=""})`;
export const FLEET_STRIPS: Strip[] = [
  { label: "Allocated", unit: "%", expr: `100 * count(${held("DCGM_FI_DEV_GPU_UTIL")}) / count(DCGM_FI_DEV_GPU_UTIL)`, tone: "dim" },
  { label: "Doing work", unit: "%", expr: "100 * avg(DCGM_FI_PROF_SM_ACTIVE)" },
  { label: "Power", unit: "kW", expr: "sum(DCGM_FI_DEV_POWER_USAGE) / 1000", tone: "ok" },
];
export const tone = (severity: string) => ({ critical: "bad", warning: "warn", info: "accent" })[severity] ?? "dim";
const short = (text: string) => (text.length > 34 ? `${text.slice(0, 33)}…` : text);
export const cardMarks = (cards: Card[]): Mark[] => cards.flatMap((c) => [
  { at: c.opened_at, label: short(c.title), tone: tone(c.severity) },
  ...(c.resolved_at ? [{ at: c.resolved_at, label: `${c.id} closed`, tone: "ok" }] : []),
]);
export function memberMarks(members: Member[]): Mark[] {
  const seen = new Set<string>();
  return members.filter((m) => !seen.has(m.text) && seen.add(m.text)).slice(0, 6)
    .map((m) => ({ at: m.since, label: markLabel(m), tone: tone(m.severity) }));
}
/** "Xid 79" says more on a line than the whole kernel record. */
function markLabel(member: Member): string {
  const xid = /Xid (?:\([^)]*\): )?(\d+)/.exec(member.text);
  if (member.kind === "event") return xid ? `Xid ${xid[1]}` : short(member.text);
  return short(/alertname="([^"]+)"/.exec(member.ref)?.[1] ?? member.text);
}
