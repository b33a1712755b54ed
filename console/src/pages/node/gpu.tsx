// One GPU: allocation, timeline, history and MIG layout.

import { useMemo } from "preact/hooks";
import mig from "../../../../watchkeeper/packs/console/mig.json";
import { Bar, Chip, Empty, Facts, IncidentCard, Panel, Skeleton } from "../../components/parts";
import { useAsk } from "../../lib/api";
import { many, percent, words } from "../../lib/format";
import { eventMarks, type History, memberMarks, type RepairRow, repairMarks } from "../../lib/marks";
import { fill, quoted } from "../../lib/promql";
import { type PageProps, to } from "../../lib/router";
import { STATES } from "../../lib/states";
import { now, useHub } from "../../lib/store";
import type { GpuDetail, Node, NodeName } from "../../lib/types";
import { called, type GpuAnswer, type Holder, withoutHolder } from "./labels";
import { HistoryPanel, LayersPanel } from "./panels";

export function GpuPage({ id: uuid, address, theme }: PageProps) {
  const { fleet, frame, open } = useHub();
  const changed = `${open?.map((c) => c.id + c.state).join()} ${Math.floor(Date.parse(frame?.at ?? "0") / 30000)}`;
  const path = encodeURIComponent(uuid);
  const { answer, problem } = useAsk<GpuDetail>(`/api/gpu/${path}`, changed);
  const name = answer?.node.name ?? "";
  const { answer: who } = useAsk<{ gpus: GpuAnswer[] }>(`/api/who?name=${path}`, changed);
  const { answer: history } = useAsk<History>(
    name && `/api/history?node=${encodeURIComponent(name)}&gpu=${path}`,
    changed,
  );
  const { answer: done } = useAsk<{ repairs: RepairRow[] }>("/api/repairs?all=1", changed);
  const marks = useMemo(() => {
    const alerts = memberMarks((answer?.events ?? []).filter((e) => e.kind !== "event"));
    return [
      ...(history?.events.length ? eventMarks(history.events) : memberMarks(answer?.events ?? [])),
      ...alerts,
      ...repairMarks(done?.repairs ?? [], name),
    ];
  }, [answer, history, done]);
  if (!answer)
    return (
      <main class="single">
        <Panel>
          {problem ? (
            <Empty title={problem.status === 404 ? "This GPU has never reported" : "Loading the GPU failed"}>
              {problem.message}. <a href="/">Fleet</a>
            </Empty>
          ) : (
            <Skeleton lines={8} />
          )}
        </Panel>
      </main>
    );
  const { gpu, labels, incidents } = answer;
  const node: NodeName & Partial<Node> = answer.node;
  const gpus = fleet?.nodes.flatMap((n) => n.gpus) ?? [];
  const slot = gpus.findIndex((g) => g?.uuid === uuid);
  const state = STATES[frame && slot >= 0 && frame.version === fleet?.version ? frame.states[slot] : 6];
  const held = who?.gpus[0]?.holders ?? [];
  const first = gpus[slot]?.workload;
  const lost = incidents.find((c) => c.state !== "resolved")?.workloads ?? [];
  const before = labels ? [] : lost;
  const workloads = held.length ? held.map(called) : first ? [first] : before;
  return (
    <main class="columns" data-testid="gpu-page">
      <div>
        <Panel class="head">
          <div class="chips">
            <Chip tone={state.name}>
              {state.glyph} {state.text}
            </Chip>
            {gpu.model && <Chip>{gpu.model}</Chip>}
            <a class="chip" href={to.node(node.name)} data-testid="to-node">
              {node.name}
            </a>
            {node.domains?.rack && (
              <a class="chip" href={to.fleet(`rack:${node.domains.rack}`)}>
                rack {node.domains.rack}
              </a>
            )}
          </div>
          <h1 data-testid="title">
            GPU {gpu.index ?? "?"} on {node.name}
          </h1>
          <p class="lead">
            {fleet?.workloads == null && !who ? "Allocation unknown." : holding(workloads, Boolean(labels))}
          </p>
        </Panel>
        <LayersPanel
          id="gpu-strips"
          node={node.name}
          gpu={uuid}
          end={Math.floor(now() / 15000) * 15000}
          {...{ workloads, address, theme, marks }}
        />
        <HistoryPanel history={history} address={address} />
      </div>
      <aside>
        <Panel
          title="Attribution"
          hint={workloads.length || labels ? many(workloads.length, "holder") : ""}
          id="attribution"
        >
          {held.length === 0 ? (
            <p class="dim">{attribution(workloads, Boolean(labels), who?.gpus[0]?.reason)}</p>
          ) : (
            held.map((h) => <HolderFacts holder={h} key={called(h) + h.slice + h.container} />)
          )}
        </Panel>
        <MigPanel uuid={uuid} holders={held} version={changed} isSilent={!labels} />
        <Panel title="Details">
          <Facts
            rows={[
              ["UUID", <code key="u">{gpu.uuid}</code>],
              ["Model", gpu.model],
              ["PCI", gpu.pci],
              [
                "Node",
                <a key="n" href={to.node(node.name)}>
                  {node.name}
                </a>,
              ],
              ["Pool", node.pool],
              ...Object.entries(node.domains ?? {}).map(([domain, value]): [string, string] => [words(domain), value]),
              ["Driver", labels?.DCGM_FI_DRIVER_VERSION],
              ["VBIOS", labels?.DCGM_FI_DEV_VBIOS_VERSION],
              ["Serial", labels?.DCGM_FI_DEV_SERIAL],
            ]}
          />
        </Panel>
        <Panel title="Incidents" hint={String(incidents.length)}>
          {incidents.length === 0 ? (
            <Empty title="No incidents" />
          ) : (
            incidents.slice(0, 5).map((c) => <IncidentCard card={c} key={c.id} />)
          )}
        </Panel>
      </aside>
    </main>
  );
}

function holding(workloads: string[], reports: boolean): string {
  const names = workloads.join(", ");
  if (reports) return names ? `Allocated to ${names}.` : "Not allocated.";
  return names ? `Not reporting. Last allocated to ${names}.` : "Not reporting. The charts show its last readings.";
}

function attribution(workloads: string[], reports: boolean, reason?: string): string {
  if (workloads.length) return `${reports ? "Allocated" : "Last allocated"} to ${workloads.join(", ")}.`;
  if (!reports) return "Unknown: not reporting.";
  const holder = withoutHolder(reason ?? "");
  return holder === "none" ? "Not allocated." : `${holder[0].toUpperCase()}${holder.slice(1)}.`;
}

const HolderFacts = ({ holder: h }: { holder: Holder }) => (
  <Facts
    rows={[
      ["Workload", called(h)],
      ["Kind", words(h.kind)],
      ["Team", h.team || "unknown"],
      ["Project", h.project],
      ["User", h.user],
      ["Container", h.container],
      ["MIG instance", h.slice],
      ["Share", h.share == null ? null : <Bar key="s" share={h.share} label="share of this GPU" />],
    ]}
  />
);

interface Slice {
  metric: { GPU_I_ID?: string; GPU_I_PROFILE?: string };
  value: [number, string];
}

/** The MIG instances of a GPU, side by side. */
function MigPanel({
  uuid,
  holders,
  version,
  isSilent,
}: {
  uuid: string;
  holders: Holder[];
  version: string;
  isSilent: boolean;
}) {
  const expr = fill(mig.activity, { gpu: quoted(uuid) });
  const { answer } = useAsk<{ data: { result: Slice[] } }>(`/api/v1/query?query=${encodeURIComponent(expr)}`, version);
  const slices = answer?.data.result.filter((s) => s.metric.GPU_I_ID) ?? [];
  if (!slices.length && isSilent)
    return (
      <Panel title="MIG layout" id="mig">
        <p class="dim">Unknown: not reporting.</p>
      </Panel>
    );
  if (!slices.length)
    return (
      <Panel title="MIG layout" hint="not partitioned" id="mig">
        <p class="dim">The whole GPU is allocated to one workload at a time.</p>
      </Panel>
    );
  const of = (id?: string) => holders.filter((h) => h.slice === id);
  return (
    <Panel title="MIG layout" hint={many(slices.length, "MIG instance")} id="mig">
      <ul class="slices">
        {slices.map(({ metric, value }) => (
          <li key={metric.GPU_I_ID} data-testid="slice" style={{ flexGrow: Number(metric.GPU_I_PROFILE?.[0]) || 1 }}>
            <b>{metric.GPU_I_PROFILE ?? `instance ${metric.GPU_I_ID}`}</b>
            <span>
              {of(metric.GPU_I_ID).map(called).join(", ") || "free"} · {percent(100 * Number(value[1]))} busy
            </span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
