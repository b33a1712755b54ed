// The colours of the map: by a metric, or by the group of a GPU.

import { useMemo } from "preact/hooks";
import { type Cell, heatColour, metricPaint, type Paint } from "../../components/heatmap_layout";
import type { Frame } from "../../lib/live_types";
import { STATES } from "../../lib/states";
import type { Fleet, FleetNode, Gpu, Status } from "../../lib/types";

export const GROUPS = { state: "State", workload: "Workload", team: "Team", pool: "Pool", model: "Model" } as const;

type Group = keyof typeof GROUPS;

const PALETTE = ["#5aa9ff", "#46b884", "#e0a526", "#c58cf2", "#f08a5d", "#4fc3d9", "#d98ba8", "#a3b85c"];

const OTHERS = "#6b7688";

export type Grouped = Paint & { label: string; entries: { name: string; colour: string; gpus: number }[] };

export function usePaint(
  chosen: string,
  status: Status | undefined,
  fleet: Fleet | undefined,
  frame: Frame | undefined,
): Paint | Grouped | undefined {
  const group = chosen in GROUPS ? (chosen as Group) : null;
  const low = frame?.low;
  const high = frame?.high;
  const states = group === "state" ? frame : undefined;
  // The status refreshes often; the map is redrawn only if its colour settings changed.
  const { title, unit } = status?.colours[chosen] ?? { title: chosen, unit: "" };
  const hasStatus = Boolean(status);
  return useMemo(() => {
    if (!hasStatus || !fleet) return undefined;
    return group ? groupPaint(group, fleet, states) : metricPaint(title, unit, low ?? 0, high ?? 1);
  }, [hasStatus, fleet, group, title, unit, low, high, states]);
}

function groupPaint(group: Group, fleet: Fleet, frame: Frame | undefined): Grouped {
  const groupOf = (node: FleetNode, gpu: Gpu | null, slot: number): string => {
    const workload = gpu?.workload ?? "";
    return (
      {
        state: () => (frame ? STATES[frame.states[slot]].name : "unknown"),
        workload: () => workload,
        team: () => fleet.teams?.[workload] ?? "",
        pool: () => node.pool,
        model: () => gpu?.model ?? "",
      }[group]() || "none"
    );
  };
  const sizes = new Map<string, number>();
  let slot = 0;
  for (const node of fleet.nodes)
    for (const gpu of node.gpus) {
      const name = groupOf(node, gpu, slot++);
      sizes.set(name, (sizes.get(name) ?? 0) + 1);
    }
  const ranked = [...sizes].filter(([name]) => name !== "none").sort((a, b) => b[1] - a[1]);
  const colours = new Map(
    ranked
      .slice(0, PALETTE.length)
      .map(([name], i) => [name, group === "state" && name === "ok" ? heatColour(0.55) : PALETTE[i]]),
  );
  const otherGpus = ranked.slice(PALETTE.length).reduce((sum, [, n]) => sum + n, 0);
  const none = sizes.get("none") ?? 0;
  const colour = (cell: Cell) => {
    const name = groupOf(cell.node, cell.gpu, cell.slot);
    return name === "none" ? heatColour(0) : (colours.get(name) ?? OTHERS);
  };
  return {
    title: GROUPS[group],
    unit: "",
    label: group,
    colour,
    describe: (cell) => `${GROUPS[group]}: ${groupOf(cell.node, cell.gpu, cell.slot)}`,
    entries: [
      ...[...colours].map(([name, shade]) => ({ name, colour: shade, gpus: sizes.get(name)! })),
      ...(otherGpus ? [{ name: "others", colour: OTHERS, gpus: otherGpus }] : []),
      ...(none ? [{ name: "none", colour: heatColour(0), gpus: none }] : []),
    ],
  };
}
