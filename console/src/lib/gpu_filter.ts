// A search text as a filter for GPUs: `rack:r07 team:research -state:ok h200`.

import { STATES } from "./states";
import type { Fleet, FleetNode, Gpu } from "./types";

export type GpuFilter = (node: FleetNode, gpu: Gpu | null, state?: number) => boolean;
/** Labels that a filter can name; the failure domains of a node are labels, too. */
export const LABELS = ["rack", "node", "pool", "model", "workload", "team", "state", "leaf", "nvlink", "uuid"] as const;

/** The values of a label with their GPU counts, as suggestions while a user types `team:`. */
export function countLabelValues(label: string, fleet: Fleet): Map<string, number> {
  const counts = new Map<string, number>();
  const add = (value: string | null | undefined) => {
    const lastWord = value?.split(" ").at(-1);
    if (lastWord) counts.set(lastWord, (counts.get(lastWord) ?? 0) + 1);
  };
  for (const node of fleet.nodes)
    for (const gpu of node.gpus) {
      const workload = gpu?.workload ?? "";
      add(
        { node: node.name, pool: node.pool, model: gpu?.model, workload, team: fleet.teams?.[workload] }[label] ??
          node.domains[label],
      );
    }
  if (label === "state") for (const s of STATES) counts.set(s.name, 0);
  return counts;
}

/** Parse a filter: all terms must match, `name:value` matches one label, and a leading minus negates a term. */
export function parseFilter(q: string, fleet: Pick<Fleet, "teams"> | undefined): GpuFilter {
  const terms = q
    .toLowerCase()
    .split(/\s+/)
    .filter(Boolean)
    .map((word) => {
      const isNegated = word.length > 1 && word.startsWith("-");
      const rest = isNegated ? word.slice(1) : word;
      const colon = rest.indexOf(":");
      return {
        not: isNegated,
        label: colon > 0 ? rest.slice(0, colon) : "",
        text: colon > 0 ? rest.slice(colon + 1) : rest,
      };
    });
  const teams = fleet?.teams ?? {};
  return (node, gpu, state) => {
    const workload = gpu?.workload ?? "";
    const team = teams[workload] ?? "";
    const labelValue = (label: string): string => {
      if (label === "node") return node.name;
      if (label === "uuid") return gpu?.uuid ?? "";
      if (label === "workload" || label === "job") return workload;
      if (label === "team") return team;
      if (label === "pool") return node.pool;
      if (label === "model") return gpu?.model ?? "";
      if (label === "state") return state == null ? "" : `${STATES[state].name} ${STATES[state].text}`;
      return node.domains[label] ?? (label === "rack" ? (node.rack ?? "") : "");
    };
    const allText = () =>
      [node.name, ...Object.values(node.domains), node.pool, gpu?.uuid, gpu?.pci, gpu?.model, workload, team].join(" ");
    return terms.every(
      ({ not, label, text }) => (label ? labelValue(label) : allText()).toLowerCase().includes(text) !== not,
    );
  };
}
