// The shapes of the hub's API, as watchkeeper/web/{fleet_api,cards,frames}.py write them.

export interface Place {
  cluster: string;
  node: string | null;
  gpu: string | null;
  domain: string | null;
}
export interface Colour {
  title: string;
  unit: string;
  low: number | null;
  high: number | null;
  metric: string;
}
export interface Status {
  version: string;
  cluster: string;
  mode: string;
  now: string;
  ready: boolean;
  not_ready_because: string | null;
  degraded: string[];
  simulated: boolean;
  dollars_per_gpu_hour: number;
  docs_url: string | null;
  colours: Record<string, Colour>;
  rules: {
    owner: string;
    at: string;
    in_force_since: string;
    rules: number;
    problems: string[];
    is_successful: boolean;
  };
}
export interface BurnRate {
  window: string;
  short_window: string;
  factor: number;
  severity: Severity;
  rate: number | null;
  short_rate: number | null;
}
export interface Slo {
  name: string;
  title: string;
  labels: Record<string, string>;
  objective: number;
  window: string;
  covered: string | null;
  indicator: number | null;
  left: number | null;
  burn_rates: BurnRate[];
  query: string;
  incidents: string[];
  state: "burning_fast" | "spent" | "burning" | "unknown" | "ok";
  since: string | null;
}
export interface Gpu {
  uuid: string;
  index: number | null;
  model: string | null;
  pci: string | null;
  workload?: string | null;
}
export interface FleetNode {
  name: string;
  pool: string;
  rack: string | null;
  domains: Record<string, string>;
  expected_gpus: number | null;
  gpus: (Gpu | null)[];
}
/**
 * `version` names the order of the cells, `edition` everything that is in here; without `workloads` nobody knows who
 * holds what.
 */
export interface Fleet {
  version: string;
  edition: string;
  nodes: FleetNode[];
  workloads: object | null;
  teams?: Record<string, string>;
}
/**
 * What has changed since an edition: a node that is new or not as it was, or the place of the first and after the last
 * that are.
 */
export interface News extends Omit<Fleet, "nodes"> {
  kind: "fleet";
  since?: string;
  nodes: (FleetNode | [number, number])[];
}
export type Severity = "critical" | "warning" | "info";
export interface Incident {
  id: string;
  place: Place;
  place_name: string;
  title: string;
  severity: Severity;
  state: "open" | "acknowledged" | "resolved";
  opened_at: string;
  resolved_at: string | null;
  cause: string;
  family: string;
  workloads: string[];
  assignee: string | null;
  part_of?: string | null;
}
export interface Silenced {
  id: string;
  author: string;
  reason: string;
  ends_at: string;
}
export interface Blast {
  broken_gpus: number;
  gpus: number;
  hits: { workload: string; team: string; gpus: number | null }[];
  teams: string[];
  gpu_hours: number;
  dollars_per_hour: number;
}
export interface Notice {
  id: string;
  receiver: string;
  occasion: string;
  state: "waiting" | "sending" | "sent" | "given_up";
  due_at: string;
  sent_at: string | null;
  tries: number;
  answer: string;
}
export interface Card extends Incident {
  dollars_per_hour?: number | null;
  signals: number;
  why: string | null;
  confidence: number | null;
  next_step: string | null;
  plan: string[];
  silenced_by?: Silenced | null;
}
export interface Member {
  kind: "event" | "alert" | "domain";
  ref: string;
  place: Place;
  cause: string;
  since: string;
  until: string | null;
  text: string;
  severity: Severity;
  incident?: string;
}
export interface Evidence {
  source: string;
  text: string;
  at: string | null;
}
export interface Finding {
  cause: string;
  confidence: number;
  title: string;
  why: string;
  evidence: Evidence[];
  actions: { do: string; command: string | null; risk: string }[];
  ruled_out: { cause: string; why: string }[];
}
export interface Receipt {
  action: { id: string; kind: string; why: string };
  at: string;
  result: string;
  text: string;
}
export interface Detail {
  incident: Incident & { members: Member[] };
  diagnosis: { at: string; findings: Finding[]; looked_at: string[]; tell_apart?: string | null } | null;
  plan: { mode: string; made_at: string; next_step: string; receipts: Receipt[] } | null;
  timeline: { at: string; actor: string; kind: string; body: unknown }[];
  silenced_by?: Silenced | null;
  blast?: Blast | null;
  runbook?: string;
}
export interface GpuDetail {
  gpu: Gpu;
  node: { name: string; pool?: string; domains?: Record<string, string> };
  labels: Record<string, string> | null;
  events: Member[];
  incidents: Card[];
}
export interface Summary {
  gpus: number;
  working_percent: number | null;
  gpu_util_percent: number | null;
  allocated_percent: number | null;
  held: number | null;
  teams: number;
  idle_teams: number;
  free: number | null;
  power_watts: number | null;
  nodes: number;
  nodes_reporting: number;
  ok: number;
  down: number;
  event: number;
  throttled: number;
  silent: number;
  held_idle: number;
  unknown: number;
}
export interface Frame {
  at: string;
  colour: string;
  version: string;
  count: number;
  summary: Summary;
  low: number;
  high: number;
  values: Float32Array;
  states: Uint8Array;
}
