// One node: its GPUs side by side, all layers on one clock, who holds it, what its scheduler says, and what happened.

import { useMemo } from "preact/hooks";
import { cardMarks, eventMarks, layers, repairMarks, spanOf, type History, type RepairRow } from "./charts";
import { count, many, quantity, words, workloadName } from "./format";
import { now, useAsk, useHub } from "./hub";
import { Chip, Empty, Facts, IncidentCard, Panel, Problem, Since, Skeleton, STATES } from "./parts";
import { param, put, to, type PageProps } from "./router";
import { Strips } from "./strips";
import { Table, type Column } from "./table";
import type { Frame } from "./live";
import type { Fleet } from "./types";

export interface Holder { kind: string; name: string; namespace: string; container: string; user: string; team: string; project: string; slice: string | null; share: number | null }
export interface GpuAnswer { uuid: string; index: number | null; model: string | null; node: string; is_gone: boolean; holders: Holder[]; reason: string; incidents: { id: string; severity: string; title: string }[] }
interface Word { source: string; state: string; reason: string; by: string; is_ready: boolean | null; is_schedulable: boolean }
interface Line { cluster: string; name: string; state: string; why: string; pool: string; rack: string; leaf: string; nvlink_domain: string; gpus_seen: number; gpus_expected: number | null; scheduler: Word[]; holders: string[]; incidents: string[]; last_seen: string | null; sources: string; unmapped: string[] }
export const called = (h: Holder) => (h.namespace ? `${h.namespace}/${h.name}` : h.name);
const TONES: Record<string, string> = { up: "ok", short: "critical", silent: "critical", never_seen: "warning", not_read: "warning", gone: "critical" };

export function NodePage({ id, address, theme }: PageProps) {
  const { fleet, frame, open, closed } = useHub(), at = Math.floor(Date.parse(frame?.at ?? "0") / 30000);
  const changed = `${open?.map((c) => c.id + c.state).join()} ${at}`;
  const { answer, problem } = useAsk<{ nodes: { node: Line; gpus: GpuAnswer[] }[] }>(`/api/who?name=${encodeURIComponent(id)}`, changed);
  const { answer: history } = useAsk<History>(`/api/history?node=${encodeURIComponent(id)}`, changed);
  const { answer: done } = useAsk<{ repairs: RepairRow[] }>("/api/repairs?all=1", changed);
  const found = answer?.nodes[0];
  // The hub says which incidents of its rack or switch are about it, too.
  const cards = [...(open ?? []), ...(closed ?? [])].filter((c) => c.place.node === id || found?.node.incidents.includes(c.id));
  const marks = useMemo(() => [...eventMarks(history?.events ?? []), ...repairMarks(done?.repairs ?? [], id), ...cardMarks(cards)], [history, done, open, closed, found]);
  if (!found) return <main class="single"><Panel>{problem ? <Empty title={problem.status === 404 ? `There is no node ${id}` : "The node cannot be shown"}>{problem.message}. <a href="/">Fleet</a></Empty> : answer ? <Empty title={`${id} is no node`}><a href={to.fleet(id)}>Find it in the fleet</a></Empty> : <Skeleton lines={8} />}</Panel></main>;
  const { node, gpus } = found, end = Math.floor(now() / 15000) * 15000, workloads = node.holders;
  return (
    <main class="columns" data-testid="node-page">
      <div>
        <Panel class="head">
          <div class="chips"><Chip tone={TONES[node.state]}>{node.state === "up" ? "✓" : "✕"} {node.state === "short" ? "short of GPUs" : words(node.state)}</Chip>{node.scheduler.map((w) => <Chip key={w.source} tone={w.is_schedulable ? "" : "warning"} title={w.reason}>{w.source}: {w.state}</Chip>)}<Chip>{node.pool || "no pool"}</Chip>
            {node.rack && <a class="chip" href={to.fleet(`rack:${node.rack}`)}>rack {node.rack}</a>}{node.leaf && <a class="chip" href={to.fleet(`leaf:${node.leaf}`)}>leaf {node.leaf}</a>}</div>
          <h1 data-testid="title">{node.name}</h1>
          <p class="lead">{lead(node, gpus)}</p>
        </Panel>
        {problem && <Problem>{problem.message}; showing the last answer.</Problem>}
        <GpuTable {...{ node, gpus, fleet, frame, address }} />
        <LayersPanel id="node-strips" node={id} gpu={null} {...{ workloads, address, theme, marks, end }} />
        <HistoryPanel history={history} gpus={gpus} address={address} />
      </div>
      <aside>
        <Panel title="Incidents" hint={String(cards.length)}>{cards.length === 0 ? <Empty title="None open here" /> : cards.slice(0, 5).map((c) => <IncidentCard card={c} key={c.id} />)}</Panel>
        <Panel title="Held by" hint={isSilent(node) && !workloads.length ? "" : many(workloads.length, "workload")} id="holders">
          {workloads.length === 0 ? (isSilent(node) ? <Empty title="Unknown">The node does not tell.</Empty> : <Empty title="Nobody">No workload holds a GPU of this node.</Empty>) : <Facts rows={byWorkload(gpus)} />}
        </Panel>
        <Panel title="About">
          <Facts rows={[["GPUs", isSilent(node) ? `${count(gpus.length)} known, none reports` : `${count(node.gpus_seen)} of ${node.gpus_expected ?? "unknown"} expected`], ["Model", gpus[0]?.model], ["Pool", node.pool || "unknown"], ["Rack", node.rack || "unknown"], ["Leaf switch", node.leaf || "unknown"], ["NVLink domain", node.nvlink_domain], ["Cluster", node.cluster],
            ["Last seen", node.last_seen ? <Since at={node.last_seen} /> : "never"], ["Named by", node.sources], ["Not named", node.unmapped.join(", ")]]} />
        </Panel>
      </aside>
    </main>
  );
}

/** Of a node that nobody can read, nothing is known now. */
const isSilent = (node: Line) => node.state !== "up" && node.state !== "short";
/** What begins with an address begins as the address does. */
const sentence = (text: string) => (text ? `${/^https?:/.test(text) ? text : text[0].toUpperCase() + text.slice(1)}. ` : "");
function lead(node: Line, gpus: GpuAnswer[]): string {
  if (isSilent(node) && !node.holders.length) return `${sentence(node.why)}Who holds its GPUs is unknown.`;
  const free = gpus.filter((g) => !g.is_gone && g.holders.length === 0).length;
  const held = node.holders.length ? `${many(node.holders.length, "workload")} on it${free ? `, ${many(free, "GPU")} free` : ""}.` : "Nobody holds a GPU of it.";
  return `${sentence(node.why)}${held}`;
}
function byWorkload(gpus: GpuAnswer[]): [string, string][] {
  const found = new Map<string, { team: string; gpus: string[] }>();
  for (const gpu of gpus) for (const h of gpu.holders) found.set(called(h), { team: h.team, gpus: [...(found.get(called(h))?.gpus ?? []), String(gpu.index ?? "?")] });
  return [...found].map(([name, { team, gpus: those }]) => [name, `GPU ${those.join(", ")}${team ? ` · team ${team}` : ""}`]);
}

function GpuTable({ node, gpus, fleet, frame, address }: { node: Line; gpus: GpuAnswer[]; fleet?: Fleet; frame?: Frame; address: URL }) {
  const slots = new Map<string, number>();
  fleet?.nodes.flatMap((n) => n.gpus).forEach((g, i) => { if (g) slots.set(g.uuid, i); });
  const of = (g: GpuAnswer) => (frame && frame.version === fleet?.version && slots.has(g.uuid) ? { state: frame.states[slots.get(g.uuid)!], value: frame.values[slots.get(g.uuid)!] } : { state: 6, value: NaN });
  const { answer: divided } = useAsk<{ data: { result: { metric: { UUID: string }; value: [number, string] }[] } }>(`/api/v1/query?query=${encodeURIComponent(`count by (UUID) (group by (UUID, GPU_I_ID) (DCGM_FI_DEV_FB_USED{Hostname=${JSON.stringify(node.name)}, GPU_I_ID!=""}))`)}`);
  const slices = new Map(divided?.data.result.map((r) => [r.metric.UUID, Number(r.value[1])]));
  const about = (g: GpuAnswer) => [...new Set([...g.incidents.map((i) => i.id), ...node.incidents.filter((one) => !gpus.some((other) => other.incidents.some((i) => i.id === one)))])];
  const columns: Column<GpuAnswer>[] = [
    { id: "gpu", title: "GPU", class: "short nowrap", value: (g) => g.index, cell: (g) => <a href={to.gpu(g.uuid)}>GPU {g.index ?? "?"}</a> },
    { id: "state", title: "State", value: (g) => STATES[of(g).state].text, cell: (g) => <Chip tone={STATES[of(g).state].name}>{STATES[of(g).state].glyph} {STATES[of(g).state].text}</Chip> },
    { id: "sm", title: "SM active", numeric: true, class: "wide-only", value: (g) => (Number.isNaN(of(g).value) ? null : of(g).value), cell: (g) => quantity(of(g).value, "%") },
    { id: "held", title: "Held by", value: (g) => g.holders.map(called).join(" "), cell: (g) => (g.holders.length ? g.holders.map((h, i) => <span key={i}>{i > 0 && ", "}<a href={to.job(called(h))}>{workloadName(called(h))}</a></span>) : <span class="dim">{isSilent(node) ? "unknown" : g.reason || "nobody"}</span>) },
    { id: "mig", title: "MIG", minor: true, value: (g) => slices.get(g.uuid) ?? 0, cell: (g) => (slices.has(g.uuid) ? `${new Set(g.holders.map((h) => h.slice).filter((s) => s != null)).size} of ${many(slices.get(g.uuid)!, "slice")} held` : isSilent(node) || !divided ? "unknown" : "whole") },
    { id: "incidents", title: "Incidents", value: (g) => about(g).length, cell: (g) => (about(g).length ? about(g).map((one) => <a key={one} href={to.incident(one)}>{one} </a>) : "none") },
  ];
  return <Panel title="GPUs" hint={`${gpus.length} side by side`} id="node-gpus"><Table id="node-gpu-table" caption="GPUs of this node" columns={columns} rows={gpus} rowKey={(g) => g.uuid} rowTestId="node-gpu" href={(g) => to.gpu(g.uuid)} address={address} sort="gpu" empty={<Empty title="No GPU has reported" />} /></Panel>;
}

export function LayersPanel(p: { id: string; node: string; gpu: string | null; workloads: string[]; address: URL; theme: string; marks: { at: string; label: string; tone: string }[]; end: number }) {
  const from = Number(param(p.address, "from")) * 1000, until = Number(param(p.address, "until")) * 1000, zoomed = from > 0 && until > from;
  const zoom = (a: number, b: number) => { put("from", String(Math.floor(a))); put("until", String(Math.ceil(b))); };
  const back = () => { put("from", null); put("until", null); };
  return (
    <Panel title="All layers on one clock" hint="hardware, fabric and workload · events, alerts and actions drawn in · drag to look closer" id="layers" side={zoomed && <button type="button" class="plain" data-testid="zoom-out" onClick={back}>Whole range</button>}>
      <Strips id={p.id} name="Readings of hardware, fabric and workload" strips={layers({ cluster: "", node: p.node, gpu: p.gpu, domain: null }, p.workloads)} quiet start={zoomed ? from : p.end - spanOf(p.address)} end={zoomed ? until : p.end} marks={p.marks} theme={p.theme} band={42} zoom={zoom} />
    </Panel>
  );
}

export function HistoryPanel({ history, gpus, address }: { history?: History; gpus?: GpuAnswer[]; address: URL }) {
  type Row = History["events"][number];
  const index = (uuid: string | null) => (uuid ? (gpus?.find((g) => g.uuid === uuid)?.index ?? "?") : "–");
  const columns: Column<Row>[] = [
    { id: "at", title: "When", value: (e) => e.at, cell: (e) => <Since at={e.at} />, class: "nowrap" },
    { id: "what", title: "What", value: (e) => (e.code == null ? words(e.kind) : `${e.kind} ${e.code}`), cell: (e) => <Chip tone={e.severity}>{e.code == null ? words(e.kind) : `${e.kind === "xid" ? "Xid" : words(e.kind)} ${e.code}`}</Chip> },
    ...(gpus ? [{ id: "gpu", title: "GPU", numeric: true, value: (e: Row) => index(e.gpu), cell: (e: Row) => (e.gpu ? <a href={to.gpu(e.gpu)}>{index(e.gpu)}</a> : "–") }] : []),
    { id: "meaning", title: "Meaning", value: (e) => e.meaning ?? "", cell: (e) => e.meaning ?? "–" },
    { id: "text", title: "Record", minor: true, value: (e) => e.text, cell: (e) => <code>{e.text}</code> },
  ];
  const summary = history?.counts.slice(0, 4).map((c) => `${c.code == null ? words(c.kind) : `${c.kind === "xid" ? "Xid" : words(c.kind)} ${c.code}`} ×${count(c.events)}`).join(" · ");
  return (
    <Panel title="Xid and event history" hint={history && (history.total ? `${summary} in ${history.days} days` : `nothing in ${history.days} days`)} id="history">
      <Table id="history-table" caption="Events, newest first" columns={columns} rows={history?.events} rowKey={(e) => e.id} rowTestId="history-row" address={address} param="hsort" most={12} empty={<Empty title="Nothing happened">The kernel log, the driver and the fabric named nothing here in {history?.days ?? 90} days.</Empty>} />
    </Panel>
  );
}
