// One node: its GPUs, timeline, allocation, scheduler state and history.

import { useMemo } from "preact/hooks";
import { Chip, Empty, Facts, IncidentCard, Panel, RequestProblem, Since, Skeleton } from "../../components/parts";
import { useRequest } from "../../lib/api";
import { count, humanise, plural } from "../../lib/format";
import { cardMarks, eventMarks, type History, type RepairRow, repairMarks } from "../../lib/marks";
import { type PageProps, to } from "../../lib/router";
import { now, useHub } from "../../lib/store";
import { GpuTable } from "./gpu_table";
import { type GpuAnswer, holderName, isSilent, type NodeLine } from "./labels";
import { HistoryPanel, LayersPanel } from "./panels";

const NODE_STATES: Record<string, string> = {
  short: "GPUs missing",
  silent: "not reporting",
  never_seen: "never reported",
  not_read: "not scraped",
  gone: "removed",
};

const TONES: Record<string, string> = {
  up: "ok",
  short: "critical",
  silent: "critical",
  never_seen: "warning",
  not_read: "warning",
  gone: "critical",
};

export function NodePage({ id, address, theme }: PageProps) {
  const { fleet, frame, open, closed } = useHub();
  const halfMinute = Math.floor(Date.parse(frame?.at ?? "0") / 30000);
  const version = `${open?.map((c) => c.id + c.state + c.repair?.activity).join()} ${halfMinute}`;
  const { answer, problem } = useRequest<{ nodes: { node: NodeLine; gpus: GpuAnswer[] }[] }>(
    `/api/who?name=${encodeURIComponent(id)}`,
    version,
  );
  const { answer: history } = useRequest<History>(`/api/history?node=${encodeURIComponent(id)}`, version);
  const { answer: repairsAnswer } = useRequest<{ repairs: RepairRow[] }>("/api/repairs?all=1", version);
  const nodeAnswer = answer?.nodes[0];
  // The hub also lists incidents of the rack or switch that affect the node.
  const cards = [...(open ?? []), ...(closed ?? [])].filter(
    (c) => c.place.node === id || nodeAnswer?.node.incidents.includes(c.id),
  );
  const marks = useMemo(
    () => [...eventMarks(history?.events ?? []), ...repairMarks(repairsAnswer?.repairs ?? [], id), ...cardMarks(cards)],
    [history, repairsAnswer, open, closed, nodeAnswer],
  );
  if (!nodeAnswer)
    return (
      <main class="single">
        <Panel>
          {problem ? (
            <Empty title={problem.status === 404 ? `Node ${id} not found` : "Loading the node failed"}>
              {problem.message}. <a href="/">Fleet</a>
            </Empty>
          ) : answer ? (
            <Empty title={`${id} is not a node`}>
              <a href={to.fleet(id)}>Search the fleet</a>
            </Empty>
          ) : (
            <Skeleton lines={8} />
          )}
        </Panel>
      </main>
    );
  const { node, gpus } = nodeAnswer;
  const end = Math.floor(now() / 15000) * 15000;
  const workloads = node.holders;
  return (
    <main class="columns" data-testid="node-page">
      <div>
        <Panel class="head">
          <div class="chips">
            {node.service?.text &&
              (node.service.incident ? (
                <a class="chip warning" data-testid="service" href={to.incident(node.service.incident)}>
                  {node.service.text}
                </a>
              ) : (
                <span class="chip warning" data-testid="service">
                  {node.service.text}
                </span>
              ))}
            <Chip tone={node.service?.text && node.state === "up" ? "" : TONES[node.state]}>
              {node.state === "up" ? "✓" : "✕"} {NODE_STATES[node.state] ?? humanise(node.state)}
            </Chip>
            {node.scheduler.map((w) => (
              <Chip key={w.source} tone={w.is_schedulable ? "" : "warning"} title={w.reason}>
                {w.source}: {w.state}
              </Chip>
            ))}
            <Chip>{node.pool || "no pool"}</Chip>
            {node.rack && (
              <a class="chip" href={to.fleet(`rack:${node.rack}`)}>
                rack {node.rack}
              </a>
            )}
            {node.leaf && (
              <a class="chip" href={to.fleet(`leaf:${node.leaf}`)}>
                leaf {node.leaf}
              </a>
            )}
          </div>
          <h1 data-testid="title">{node.name}</h1>
          <p class="lead">{describeNode(node)}</p>
        </Panel>
        <RequestProblem problem={problem} isStale />
        <GpuTable {...{ node, gpus, fleet, frame, address }} />
        <LayersPanel id="node-strips" node={id} gpu={null} {...{ workloads, address, theme, marks, end }} />
        <HistoryPanel history={history} gpus={gpus} address={address} />
      </div>
      <aside>
        <Panel title="Incidents" hint={String(cards.length)}>
          {cards.length === 0 ? (
            <Empty title="No open incidents" />
          ) : (
            cards.slice(0, 5).map((c) => <IncidentCard card={c} key={c.id} />)
          )}
        </Panel>
        <Panel
          title="Allocated to"
          hint={isSilent(node) && !workloads.length ? "" : plural(workloads.length, "workload")}
          id="holders"
        >
          {workloads.length === 0 ? (
            isSilent(node) ? (
              <Empty title="Unknown">The node does not report it.</Empty>
            ) : (
              <Empty title="Not allocated">No GPU of this node is allocated.</Empty>
            )
          ) : (
            <Facts rows={gpusByWorkload(gpus)} />
          )}
        </Panel>
        <Panel title="Details">
          <Facts
            rows={[
              [
                "GPUs",
                isSilent(node)
                  ? `${count(gpus.length)} expected, none reporting`
                  : `${count(node.gpus_seen)} of ${node.gpus_expected ?? "unknown"} expected`,
              ],
              ["Model", gpus[0]?.model],
              ["Pool", node.pool || "unknown"],
              ["Rack", node.rack || "unknown"],
              ["Leaf switch", node.leaf || "unknown"],
              ["NVLink domain", node.nvlink_domain],
              ["Cluster", node.cluster],
              ["Last seen", node.last_seen ? <Since at={node.last_seen} /> : "never"],
              ["Source", node.sources],
              ["Not in the inventory", node.unmapped.join(", ")],
            ]}
          />
        </Panel>
      </aside>
    </main>
  );
}

/** Make a sentence; a text that starts with a URL is not capitalised. */
const toSentence = (text: string) =>
  text ? `${/^https?:/.test(text) ? text : text[0].toUpperCase() + text.slice(1)}. ` : "";

function describeNode(node: NodeLine): string {
  if (isSilent(node) && !node.holders.length) return `${toSentence(node.why)}GPU allocation unknown.`;
  const { gpus, allocated, ...others } = node.gpus;
  const notAllocated = Object.entries(others).filter(([, n]) => n > 0);
  const states = notAllocated.map(([state, n]) => `, ${plural(n, "GPU")} ${humanise(state)}`).join("");
  const allocation = node.holders.length ? plural(node.holders.length, "workload") : "No GPU is allocated";
  return `${toSentence(node.why)}${allocation}${states}.`;
}

function gpusByWorkload(gpus: GpuAnswer[]): [string, string][] {
  const workloads = new Map<string, { team: string; gpus: string[] }>();
  for (const gpu of gpus)
    for (const h of gpu.holders)
      workloads.set(holderName(h), {
        team: h.team,
        gpus: [...(workloads.get(holderName(h))?.gpus ?? []), String(gpu.index ?? "?")],
      });
  return [...workloads].map(([name, { team, gpus: indexes }]) => [
    name,
    `GPU ${indexes.join(", ")}${team ? ` · team ${team}` : ""}`,
  ]);
}
