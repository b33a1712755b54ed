// The table of GPUs of a node.

import mig from "../../../../watchkeeper/packs/console/mig.json";
import { Chip, Empty, Panel } from "../../components/parts";
import { type Column, Table } from "../../components/table";
import { useRequest } from "../../lib/api";
import { plural, quantity, workloadName } from "../../lib/format";
import type { Frame } from "../../lib/live_types";
import { fillTemplate, quoted } from "../../lib/promql";
import { to } from "../../lib/router";
import { STATES } from "../../lib/states";
import type { Fleet } from "../../lib/types";
import { describeNoHolder, type GpuAnswer, holderName, isSilent, type NodeLine } from "./labels";

export function GpuTable({
  node,
  gpus,
  fleet,
  frame,
  address,
}: {
  node: NodeLine;
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
  const liveState = (g: GpuAnswer) =>
    frame && frame.version === fleet?.version && slots.has(g.uuid)
      ? { state: frame.states[slots.get(g.uuid)!], value: frame.values[slots.get(g.uuid)!] }
      : { state: 6, value: NaN };
  const { answer: migAnswer } = useRequest<{
    data: { result: { metric: { UUID: string }; value: [number, string] }[] };
  }>(`/api/v1/query?query=${encodeURIComponent(fillTemplate(mig.slices, { node: quoted(node.name) }))}`);
  const slices = new Map(migAnswer?.data.result.map((r) => [r.metric.UUID, Number(r.value[1])]));
  const incidentsOf = (g: GpuAnswer) => [
    ...new Set([
      ...g.incidents.map((i) => i.id),
      ...node.incidents.filter((id) => !gpus.some((gpu) => gpu.incidents.some((i) => i.id === id))),
    ]),
  ];
  const describeMig = (g: GpuAnswer) => {
    const instances = slices.get(g.uuid);
    if (instances == null) return isSilent(node) || !migAnswer ? "unknown" : "whole";
    const allocated = new Set(g.holders.flatMap((h) => h.slice ?? []));
    return `${allocated.size} of ${plural(instances, "MIG instance")} allocated`;
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
      value: (g) => STATES[liveState(g).state].text,
      cell: (g) => (
        <Chip tone={STATES[liveState(g).state].name}>
          {STATES[liveState(g).state].glyph} {STATES[liveState(g).state].text}
        </Chip>
      ),
    },
    {
      id: "sm",
      title: "SM active",
      numeric: true,
      class: "wide-only",
      value: (g) => (Number.isNaN(liveState(g).value) ? null : liveState(g).value),
      cell: (g) => quantity(liveState(g).value, "%"),
    },
    {
      id: "held",
      title: "Allocated to",
      value: (g) => g.holders.map(holderName).join(" "),
      cell: (g) =>
        g.holders.length ? (
          g.holders.map((h, i) => (
            <span key={i}>
              {i > 0 && ", "}
              <a href={to.job(holderName(h))}>{workloadName(holderName(h))}</a>
            </span>
          ))
        ) : (
          <span class="dim">{isSilent(node) ? "unknown" : describeNoHolder(g.reason)}</span>
        ),
    },
    {
      id: "mig",
      title: "MIG",
      minor: true,
      value: (g) => slices.get(g.uuid) ?? 0,
      cell: (g) => describeMig(g),
    },
    {
      id: "incidents",
      title: "Incidents",
      value: (g) => incidentsOf(g).length,
      cell: (g) =>
        incidentsOf(g).length
          ? incidentsOf(g).map((id) => (
              <a key={id} href={to.incident(id)}>
                {id}{" "}
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
