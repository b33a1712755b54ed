// One GPU: allocation, timeline, history and MIG layout.

import { useMemo } from "preact/hooks";
import mig from "../../../../watchkeeper/packs/console/mig.json";
import { Bar, Chip, Empty, Facts, IncidentCard, Panel, Skeleton } from "../../components/parts";
import { useRequest } from "../../lib/api";
import { humanise, percent, plural } from "../../lib/format";
import { eventMarks, type History, memberMarks, type RepairRow, repairMarks } from "../../lib/marks";
import { fillTemplate, quoted } from "../../lib/promql";
import { type PageProps, to } from "../../lib/router";
import { outOfService, STATES } from "../../lib/states";
import { now, useHub } from "../../lib/store";
import type { GpuDetail, Node, NodeName } from "../../lib/types";
import { describeNoHolder, type GpuAnswer, type Holder, holderName } from "./labels";
import { HistoryPanel, LayersPanel } from "./panels";

export function GpuPage({ id: uuid, address, theme }: PageProps) {
  const { fleet, frame, open } = useHub();
  const version = `${open?.map((c) => c.id + c.state).join()} ${Math.floor(Date.parse(frame?.at ?? "0") / 30000)}`;
  const path = encodeURIComponent(uuid);
  const { answer, problem } = useRequest<GpuDetail>(`/api/gpu/${path}`, version);
  const name = answer?.node.name ?? "";
  const { answer: attributionAnswer } = useRequest<{ gpus: GpuAnswer[] }>(`/api/who?name=${path}`, version);
  const { answer: history } = useRequest<History>(
    name && `/api/history?node=${encodeURIComponent(name)}&gpu=${path}`,
    version,
  );
  const { answer: repairsAnswer } = useRequest<{ repairs: RepairRow[] }>("/api/repairs?all=1", version);
  const marks = useMemo(() => {
    const alerts = memberMarks((answer?.events ?? []).filter((e) => e.kind !== "event"));
    return [
      ...(history?.events.length ? eventMarks(history.events) : memberMarks(answer?.events ?? [])),
      ...alerts,
      ...repairMarks(repairsAnswer?.repairs ?? [], name),
    ];
  }, [answer, history, repairsAnswer]);
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
  const service = outOfService(frame, fleet, node.name);
  const state = STATES[frame && slot >= 0 && frame.version === fleet?.version ? frame.states[slot] : 6];
  const holders = attributionAnswer?.gpus[0]?.holders ?? [];
  const frameWorkload = gpus[slot]?.workload;
  const incidentWorkloads = incidents.find((c) => c.state !== "resolved")?.workloads ?? [];
  const lastWorkloads = labels ? [] : incidentWorkloads;
  const workloads = holders.length ? holders.map(holderName) : frameWorkload ? [frameWorkload] : lastWorkloads;
  return (
    <main class="columns" data-testid="gpu-page">
      <div>
        <Panel class="head">
          <div class="chips">
            <Chip tone={state.name}>
              {state.glyph} {state.text}
            </Chip>
            {service && <Chip tone="warning">{service}</Chip>}
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
            {fleet?.workloads == null && !attributionAnswer
              ? "Allocation unknown."
              : describeAllocation(workloads, Boolean(labels))}
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
          hint={workloads.length || labels ? plural(workloads.length, "holder") : ""}
          id="attribution"
        >
          {holders.length === 0 ? (
            <p class="dim">{describeAttribution(workloads, Boolean(labels), attributionAnswer?.gpus[0]?.reason)}</p>
          ) : (
            holders.map((h) => <HolderFacts holder={h} key={holderName(h) + h.slice + h.container} />)
          )}
        </Panel>
        <MigPanel uuid={uuid} holders={holders} version={version} isSilent={!labels} />
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
              ...Object.entries(node.domains ?? {}).map(([domain, value]): [string, string] => [
                humanise(domain),
                value,
              ]),
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

function describeAllocation(workloads: string[], reports: boolean): string {
  const names = workloads.join(", ");
  if (reports) return names ? `Allocated to ${names}.` : "Not allocated.";
  return names ? `Not reporting. Last allocated to ${names}.` : "Not reporting. The charts show its last readings.";
}

function describeAttribution(workloads: string[], reports: boolean, reason?: string): string {
  if (workloads.length) return `${reports ? "Allocated" : "Last allocated"} to ${workloads.join(", ")}.`;
  if (!reports) return "Unknown: not reporting.";
  const holder = describeNoHolder(reason ?? "");
  return holder === "none" ? "Not allocated." : `${holder[0].toUpperCase()}${holder.slice(1)}.`;
}

const HolderFacts = ({ holder: h }: { holder: Holder }) => (
  <Facts
    rows={[
      ["Workload", holderName(h)],
      ["Kind", humanise(h.kind)],
      ["Team", h.team || "unknown"],
      ["Project", h.project],
      ["User", h.user],
      ["Container", h.container],
      ["MIG instance", h.slice],
      ["Share", h.share == null ? null : <Bar key="s" share={h.share} label="share of this GPU" />],
    ]}
  />
);

interface MigSeries {
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
  const expr = fillTemplate(mig.activity, { gpu: quoted(uuid) });
  const { answer } = useRequest<{ data: { result: MigSeries[] } }>(
    `/api/v1/query?query=${encodeURIComponent(expr)}`,
    version,
  );
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
  const holdersOf = (id?: string) => holders.filter((h) => h.slice === id);
  return (
    <Panel title="MIG layout" hint={plural(slices.length, "MIG instance")} id="mig">
      <ul class="slices">
        {slices.map(({ metric, value }) => (
          <li key={metric.GPU_I_ID} data-testid="slice" style={{ flexGrow: Number(metric.GPU_I_PROFILE?.[0]) || 1 }}>
            <b>{metric.GPU_I_PROFILE ?? `instance ${metric.GPU_I_ID}`}</b>
            <span>
              {holdersOf(metric.GPU_I_ID).map(holderName).join(", ") || "free"} · {percent(100 * Number(value[1]))} busy
            </span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
