// Types, states and labels of rules and alerts.

/** `id` is the name, with a number if several rules have the same name, such as burn rates over several windows. */
export interface Rule {
  id: string;
  name: string;
  group: string;
  file: string;
  line: number;
  expr: string;
  for_seconds: number;
  keep_firing_seconds: number;
  severity: string;
  cause: string;
  summary: string;
  firing: number;
  pending: number;
  health: string;
  problem: string;
  evaluated_at: string | null;
  seconds: number;
}

export interface Alert {
  name: string;
  labels: Record<string, string>;
  state: string;
  active_at: string;
  fired_at: string | null;
  value: number;
  summary: string;
}

export interface Rules {
  now: string;
  rules: Omit<Rule, "id">[];
  alerts: Alert[];
  alerts_total: number;
}

export interface Episode {
  alert: string;
  labels: Record<string, string>;
  active_at: string;
  fired_at: string | null;
  ended_at: string | null;
  value: number;
}

export interface Replay {
  since: string;
  until: string;
  steps: number;
  fired: number;
  waited: number;
  episodes: Episode[];
  failures: { rule: string; problem: string }[];
}

export function ruleState(r: Rule): string {
  if (r.firing) return "firing";
  if (r.pending) return "pending";
  if (r.health === "err") return "evaluation failed";
  return r.evaluated_at ? "inactive" : "not evaluated yet";
}

export function ruleTone(r: Rule): string {
  if (r.health === "err") return "critical";
  if (r.firing) return r.severity === "critical" ? "critical" : "warning";
  if (r.pending) return "info";
  return r.evaluated_at ? "ok" : "";
}

export const shortLabels = (labels: Record<string, string>) =>
  Object.entries(labels)
    .filter(([k]) => !["alertname", "severity", "cause", "cluster", "job", "instance"].includes(k))
    .map(([k, v]) => `${k} ${v}`)
    .slice(0, 5)
    .join(" · ");
