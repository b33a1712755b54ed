// What the charts ask, in PromQL; each works on any Prometheus with dcgm-exporter's names.

import type { Strip } from "./strips";
import type { Card, Member, Place, Severity } from "./types";
import type { Mark } from "./strips";

/** Time ranges of pages with charts, in milliseconds; the name is in the address. */
export const RANGES: Record<string, number> = { "15m": 900e3, "1h": 3600e3, "6h": 21600e3, "24h": 86400e3, "7d": 604800e3 };
export const spanOf = (address: URL): number => RANGES[address.searchParams.get("range") ?? "1h"] ?? RANGES["1h"];

const quoted = (text: string) => JSON.stringify(text);
/** A metric of the GPUs that a place means. What spans nodes has no label of its own in the readings: another series names its GPUs or nodes. */
type Where = Pick<Place, "cluster" | "node" | "gpu" | "domain">;
function readings(place: Where): (metric: string) => string {
  if (place.gpu) return (metric) => `${metric}{UUID=${quoted(place.gpu!)}}`;
  if (place.node) return (metric) => `${metric}{Hostname=${quoted(place.node!)}}`;
  if (!place.domain) return (metric) => metric;
  const [kind, name] = partsOf(place.domain), job = `{job_name=${quoted(name)}}`, [space, pod] = name.includes("/") ? name.split("/") : ["", name];
  const named = {
    job: `on (UUID) (training_rank_info${job} or watchkeeper:job_gpu:share${job})`,
    pod: `on (UUID) watchkeeper_gpu_workload_info{namespace=${quoted(space)},workload=${quoted(pod)}}`,
    hpc_job: `on (UUID) watchkeeper_gpu_workload_info{workload=${quoted(name)}}`,
  }[kind] ?? `on (cluster, Hostname) watchkeeper_node_info{cluster=${quoted(place.cluster)},${kind.replace(/\W/g, "_")}=${quoted(name)}}`;
  return (metric) => `(${metric} and ${named})`;
}
const partsOf = (domain: string): [string, string] => { const at = domain.indexOf("="); return [domain.slice(0, at), domain.slice(at + 1)]; };
/** The job's own name: a pod `research/llm-70b-worker-3` belongs to the job `llm-70b`. */
export const jobOf = (workload: string) => workload.replace(/^.*\//, "").replace(/-(worker|master|launcher|rank|server)?-?\d+$/, "");
const pattern = (texts: string[]) => quoted(texts.map((t) => t.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|"));
/** All layers of one place: what the hardware does, what its links carry, and what the work on it achieves. */
export function layers(place: Where, workloads: string[] = []): Strip[] {
  const of = readings(place), [kind, name] = partsOf(place.domain ?? ""), jobs = [...new Set([...(kind === "job" || kind === "model" ? [name] : []), ...workloads.flatMap((w) => [w.replace(/^.*\//, ""), jobOf(w)])])];
  const hardware: Strip[] = [
    { label: "SM active", unit: "%", expr: `100 * avg(${of("DCGM_FI_PROF_SM_ACTIVE")})`, group: "hardware" },
    { label: "Power", unit: "W", expr: `avg(${of("DCGM_FI_DEV_POWER_USAGE")})`, group: "hardware" },
    { label: "Temperature", unit: "°C", expr: `max(${of("DCGM_FI_DEV_GPU_TEMP")})`, group: "hardware" },
    { label: "SM clock", unit: "MHz", expr: `avg(${of("DCGM_FI_DEV_SM_CLOCK")})`, group: "hardware" },
    { label: "Memory used", unit: "GiB", expr: `avg(${of("DCGM_FI_DEV_FB_USED")}) / 1024`, group: "hardware" },
  ];
  const fabric: Strip[] = [
    { label: "PCIe", unit: "B/s", expr: `sum(${of("DCGM_FI_PROF_PCIE_TX_BYTES")}) + sum(${of("DCGM_FI_PROF_PCIE_RX_BYTES")})`, tone: "c4", group: "fabric" },
    { label: "NVLink", unit: "B/s", expr: `sum(${of("DCGM_FI_PROF_NVLINK_TX_BYTES")}) + sum(${of("DCGM_FI_PROF_NVLINK_RX_BYTES")})`, tone: "c4", group: "fabric" },
  ];
  if (place.node) {
    const here = `{instance=~${quoted(`${place.node.replace(/[.]/g, "\\$&")}(:.*)?`)}}`, carried = (m: string, over: string) => `sum(rate(node_infiniband_${m}${here}[${over}]))`;
    fabric.push({ label: "InfiniBand", unit: "B/s", expr: `${carried("port_data_received_bytes_total", "1m")} + ${carried("port_data_transmitted_bytes_total", "1m")}`, tone: "c4", group: "fabric" },
      { label: "Symbol errors", unit: "/ h", expr: `3600 * ${carried("symbol_error_total", "5m")}`, tone: "c4", group: "fabric" });
  }
  const job = `{job_name=~${pattern(jobs)}}`, model = `{model_name=~${pattern(jobs)}}`;
  const work: Strip[] = jobs.length === 0 ? [] : [
    { label: "Steps", unit: "/ s", expr: `min(max by (job_name) (rate(training_iterations_total${job}[1m])))`, tone: "ok", group: "workload" },
    { label: "Waits for data", unit: "%", expr: `100 * max(rate(training_data_wait_seconds_total${job}[1m]))`, tone: "ok", group: "workload" },
    { label: "Requests", unit: "", expr: `sum(vllm:num_requests_running${model})`, tone: "ok", group: "workload" },
    { label: "Queue", unit: "", expr: `sum(vllm:num_requests_waiting${model})`, tone: "ok", group: "workload" },
  ];
  return [...hardware, ...fabric, ...work];
}
// Of the GPUs that report, as in the tile; an exporter's labels or the hub's own series say who holds one.
const REPORTING = "(DCGM_FI_DEV_POWER_USAGE or DCGM_FI_DEV_GPU_UTIL)", ALL = `count(group by (UUID) ${REPORTING})`;
const HELD = `(${["pod", "exported_pod", "hpc_job"].map((label) => `DCGM_FI_DEV_GPU_UTIL{${label}!=""}`).join(" or ")} or (watchkeeper_gpu_workload_info and on (UUID) ${REPORTING}))`;
export const FLEET_STRIPS: Strip[] = [
  { label: "Allocated", unit: "%", expr: `100 * (count(group by (UUID) ${HELD}) or 0 * ${ALL}) / ${ALL}`, tone: "dim" },
  { label: "Working", unit: "%", expr: "100 * avg(DCGM_FI_PROF_SM_ACTIVE)" },
  { label: "Power", unit: "kW", expr: "sum(DCGM_FI_DEV_POWER_USAGE) / 1000", tone: "ok" },
];
export const tone = (severity: string) => ({ critical: "bad", warning: "warn", info: "accent" })[severity] ?? "dim";
const short = (text: string) => (text.length > 34 ? `${text.slice(0, 33)}…` : text);
/** Steps of repairs that touched a node: actions stand in the same lines as what made them necessary. */
export interface RepairRow { id: string; incident: string; node: Place; cause: string; state: string; receipts: { at: string; result: string; action: { kind: string } }[] }
export const repairMarks = (repairs: RepairRow[], node: string): Mark[] => repairs.filter((r) => r.node.node === node)
  .flatMap((r) => r.receipts.filter((one) => one.result !== "described").map((one) => ({ at: one.at, label: `${one.action.kind.replace(/_/g, " ")}${one.result === "done" ? "" : ` ${one.result}`}`, tone: one.result === "failed" ? "warn" : "accent" })));
export interface Happened { id: string; at: string; kind: string; code: number | null; text: string; gpu: string | null; process: string | null; meaning: string | null; severity: Severity }
export interface History { events: Happened[]; total: number; days: number; counts: { kind: string; code: number | null; events: number; newest: string; meaning: string | null }[] }
export function eventMarks(events: Happened[]): Mark[] {
  const seen = new Set<string>();
  return events.map((e) => ({ at: e.at, label: e.code != null && e.kind.endsWith("xid") ? `${e.kind === "xid" ? "Xid" : "SXid"} ${e.code}` : e.kind.replace(/_/g, " "), tone: tone(e.severity) }))
    .filter((m) => { const key = `${m.label} ${m.at.slice(0, 16)}`; return !seen.has(key) && seen.add(key); }).slice(0, 40);
}
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
  if (member.kind === "event") return xid ? `Xid ${xid[1]}` : short(member.text.replace(/^NVRM: (GPU [0-9a-f:.]+: )?/i, ""));
  return short(/alertname="([^"]+)"/.exec(member.ref)?.[1] ?? member.text);
}
