// Types of bills, and formatting of money and hours.

import { count, money, percent } from "../../lib/format";

export interface Hours {
  total: number;
  allocated: number;
  used: number;
  wasted: number;
  unmeasured: number;
  idle: number;
  lost: number;
  unknown: number;
  kwh: number;
  spare: number;
}

/** Money is null if nothing in the row has a price. */
export interface Line {
  money: number | null;
  shared: number;
  wasted_money: number | null;
  unpriced_hours: number;
  hours: Hours;
  [dimension: string]: unknown;
}

export interface Bill {
  since: number;
  until: number;
  recorded_hours: number;
  by: string[];
  currency: string;
  policy: string;
  policy_words: string;
  lines: Line[];
  total: Line;
  money: number | null;
  shared: Record<string, number>;
  holes: Record<string, number>;
  kwh: number;
  pue: number | null;
  kwh_with_pue: number | null;
  rates: { of: string; kind: string; per_gpu_hour: number; source: string; checked: string }[];
  notes: string[];
  words: Record<string, string>;
}

export interface Waste {
  team: string;
  user: string;
  job: string;
  gpu_hours: number;
  money: number | null;
}

export interface Budget {
  team: string;
  budget: number | null;
  spent: number | null;
  forecast: number | null;
  low: number | null;
  high: number | null;
  state: string;
}

/** The dimension that a click on a row splits it by. */
export const DRILL_DOWN: Record<string, string> = {
  cluster: "team",
  pool: "team",
  model: "team",
  node: "job",
  team: "user",
  project: "user",
  namespace: "job",
  user: "job",
  kind: "job",
};

export const formatCost = (n: number | null | undefined, currency: string) => money(n, currency, "no price");

export const formatHours = (n: number) =>
  n > 0 && n < 0.005 ? "< 0.01" : n < 10 ? n.toFixed(n < 0.95 && n > 0 ? 2 : 1) : count(n);

/** Allocated GPU-hours that were measured; the others say nothing about use. */
export const measuredHours = (h: Hours) => h.allocated - h.unmeasured;

export const usedShare = (h: Hours) => (measuredHours(h) > 0.005 ? percent((100 * h.used) / measuredHours(h)) : null);
