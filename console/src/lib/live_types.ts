// Message types of the live socket: changes and frames of the fleet.

import type { Fleet, FleetNode, GpuCounts } from "./types";

export interface FleetChange extends Omit<Fleet, "nodes"> {
  kind: "fleet";
  since?: string;
  nodes: (FleetNode | [number, number])[];
}

export interface Summary {
  gpus: number;
  gpu_states: GpuCounts;
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
  cordoned: number;
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
  /** Why nodes are out of service, by their index in the fleet. */
  out_of_service: Record<number, string>;
}
