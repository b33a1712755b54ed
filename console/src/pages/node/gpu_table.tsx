// The table of GPUs of a node.

import mig from "../../../../watchkeeper/packs/console/mig.json";
import { Chip, Empty, Panel } from "../../components/parts";
import { type Column, Table } from "../../components/table";
import { useAsk } from "../../lib/api";
import { many, quantity, workloadName } from "../../lib/format";
import type { Frame } from "../../lib/live_types";
import { fill, quoted } from "../../lib/promql";
import { to } from "../../lib/router";
import { STATES } from "../../lib/states";
import type { Fleet } from "../../lib/types";
import { called, type GpuAnswer, isSilent, type Line, withoutHolder } from "./labels";

export function GpuTable({
  node,
  gpus,
  fleet,
  frame,
  address,
}: {
  node: Line;
  gpus: GpuAnswer[];
  fleet?: Fleet;
  frame?: Frame;
  address: URL;
}) {
  const slots = new Map<string, number>();
  fleet?.nodes
    .flatMap((n) => n.gpus)
    .forEach((g, i) => {
      if (g) slots.set(g.uuid, i);
    });
  const of = (g: GpuAnswer) =>
    frame && frame.version === fleet?.version && slots.has(g.uuid)
      ? { state: frame.states[slots.get(g.uuid)!], value: frame.values[slots.get(g.uuid)!] }
      : { state: 6, value: NaN };
  const { answer: divided } = useAsk<{ data: { result: { metric: { UUID: string }; value: [number, string] }[] } }>(
    `/api/v1/query?query=${encodeURIComponent(fill(mig.slices, { node: quoted(node.name) }))}`,
  );
  const slices = new Map(divided?.data.result.map((r) => [r.metric.UUID, Number(r.value[1])]));
  const about = (g: GpuAnswer) => [
    ...new Set([
      ...g.incidents.map((i) => i.id),
      ...node.incidents.filter((one) => !gpus.some((other) => other.incidents.some((i) => i.id === one))),
    ]),
  ];
  const divisionOf = (g: GpuAnswer) => {
    const all = slices.get(g.uuid);
    if (all == null) return isSilent(node) || !divided ? "unknown" : "whole";
    const held = new Set(g.holders.flatMap((h) => h.slice ?? []));
    return `${held.size} of ${many(all, "MIG instance")} allocated`;
  };
  const columns: Column<GpuAnswer>[] = [
    {
      id: "gpu",
      title: "GPU",
      class: "short nowrap",
      value: (g) => g.index,
      cell: (g) => <a href={to.gpu(g.uuid)}>GPU {g.index ?? "?"}</a>,
    },
    {
      id: "state",
      title: "State",
      value: (g) => STATES[of(g).state].text,
      cell: (g) => (
        <Chip tone={STATES[of(g).state].name}>
          {STATES[of(g).state].glyph} {STATES[of(g).state].text}
        </Chip>
      ),
    },
    {
      id: "sm",
      title: "SM active",
      numeric: true,
      class: "wide-only",
      value: (g) => (Number.isNaN(of(g).value) ? null : of(g).value),
      cell: (g) => quantity(of(g).value, "%"),
    },
    {
      id: "held",
      title: "Allocated to",
      value: (g) => g.holders.map(called).join(" "),
      cell: (g) =>
        g.holders.length ? (
          g.holders.map((h, i) => (
            <span key={i}>
              {i > 0 && ", "}
              <a href={to.job(called(h))}>{workloadName(called(h))}</a>
            </span>
          ))
        ) : (
          <span class="dim">{isSilent(node) ? "unknown" : withoutHolder(g.reason)}</span>
        ),
    },
    {
      id: "mig",
      title: "MIG",
      minor: true,
      value: (g) => slices.get(g.uuid) ?? 0,
      cell: (g) => divisionOf(g),
    },
    {
      id: "incidents",
      title: "Incidents",
      value: (g) => about(g).length,
      cell: (g) =>
        about(g).length
          ? about(g).map((one) => (
              <a key={one} href={to.incident(one)}>
                {one}{" "}
              </a>
            ))
          : "none",
    },
  ];
  return (
    <Panel title="GPUs" hint={`${gpus.length}`} id="node-gpus">
      <Table
        id="node-gpu-table"
        caption="GPUs of this node"
        columns={columns}
        rows={gpus}
        rowKey={(g) => g.uuid}
        rowTestId="node-gpu"
        href={(g) => to.gpu(g.uuid)}
        address={address}
        sort="gpu"
        empty={<Empty title="No GPU has reported" />}
      />
    </Panel>
  );
}
