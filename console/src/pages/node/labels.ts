// Types and labels of nodes and GPUs, as the hub returns them.

import { humanise } from "../../lib/format";
import type { GpuCounts } from "../../lib/types";

export interface Holder {
  kind: string;
  name: string;
  namespace: string;
  container: string;
  user: string;
  team: string;
  project: string;
  slice: string | null;
  share: number | null;
}

export interface GpuAnswer {
  uuid: string;
  index: number | null;
  model: string | null;
  node: string;
  is_gone: boolean;
  holders: Holder[];
  reason: string;
  incidents: { id: string; severity: string; title: string }[];
}

interface SchedulerState {
  source: string;
  state: string;
  reason: string;
  by: string;
  is_ready: boolean | null;
  is_schedulable: boolean;
}

export interface NodeLine {
  cluster: string;
  name: string;
  state: string;
  why: string;
  pool: string;
  rack: string;
  leaf: string;
  nvlink_domain: string;
  gpus_seen: number;
  gpus_expected: number | null;
  scheduler: SchedulerState[];
  holders: string[];
  incidents: string[];
  last_seen: string | null;
  sources: string;
  unmapped: string[];
  gpus: GpuCounts;
  service: { state: string; text: string; incident: string | null } | null;
}

/** What a GPU without a holder shows: only `free` is a fact, any other reason is missing data. */
export const describeNoHolder = (reason: string) =>
  !reason || reason === "free" ? "none" : `unknown (${humanise(reason)})`;

export const holderName = (h: Holder) => (h.namespace ? `${h.namespace}/${h.name}` : h.name);

/** The current state of a node that does not report is unknown. */
export const isSilent = (node: NodeLine) => node.state !== "up" && node.state !== "short";
