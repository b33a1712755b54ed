// One GPU: who holds it, its readings on one clock, and what happened to it.

import { gpuStrips, memberMarks } from "./charts";
import { RANGES } from "./fleet";
import { STATES } from "./heatmap";
import { now, useAsk, useHub } from "./hub";
import { Chip, Empty, IncidentCard, Panel, Skeleton, Time } from "./parts";
import { put } from "./router";
import { Strips } from "./strips";
import type { GpuDetail } from "./types";

export function GpuPage({ uuid, address, theme }: { uuid: string; address: URL; theme: string }) {
  const { fleet, frame, open, status } = useHub();
  const { answer, problem } = useAsk<GpuDetail>(`/api/gpu/${encodeURIComponent(uuid)}`, open?.map((c) => c.id + c.state).join());
  if (!answer) return <main class="single"><Panel>{problem ? <Empty title={problem.status === 404 ? "This GPU has never reported" : "The GPU cannot be shown"}>{problem.message}. <a href="/">Fleet</a></Empty> : <Skeleton lines={8} />}</Panel></main>;
  const { gpu, node, labels, events, incidents } = answer;
  const flat = fleet?.nodes.flatMap((n) => n.gpus) ?? [], slot = flat.findIndex((g) => g?.uuid === uuid);
  const state = STATES[frame && slot >= 0 && frame.version === fleet?.version ? frame.states[slot] : 6];
  const span = address.searchParams.get("range") ?? "1h", end = Math.ceil(now() / 5000) * 5000;
  const held = fleet?.workloads?.[uuid];
  const facts: [string, string | null | undefined][] = [
    ["UUID", gpu.uuid], ["Model", gpu.model], ["PCI", gpu.pci], ["Node", node.name], ["Pool", node.pool], ...Object.entries(node.domains ?? {}),
    ["Driver", labels?.DCGM_FI_DRIVER_VERSION],
  ];
  return (
    <main class="columns" data-testid="gpu-page">
      <div>
        <Panel class="head">
          <div class="chips"><Chip tone={state.name}>{state.glyph} {state.text}</Chip>{gpu.model && <Chip>{gpu.model}</Chip>}</div>
          <h1 data-testid="title">GPU {gpu.index ?? "?"} on {node.name}</h1>
          <p class="lead">{fleet?.workloads == null ? "Who holds it is unknown." : held ? `Held by ${held}.` : labels ? "Not held by a workload." : "It does not report: its last readings are in the charts."}</p>
        </Panel>
        <Panel title="Readings" hint="one clock for all · events drawn in" id="readings"
          side={<nav class="pick" aria-label="range">{Object.keys(RANGES).map((r) => <button type="button" key={r} aria-pressed={r === span} onClick={() => put("range", r)}>{r}</button>)}</nav>}>
          {status && <Strips id="gpu-strips" strips={gpuStrips({ cluster: "", node: node.name, gpu: uuid, domain: null })} start={end - (RANGES[span] ?? RANGES["1h"])} end={end} marks={memberMarks(events)} theme={theme} />}
        </Panel>
        <Panel title="Events" hint="what happened to this GPU" id="gpu-events">
          {events.length === 0 ? <Empty title="No event is known">Kernel log and alerts have not named this GPU.</Empty> : <ol class="evidence">{events.map((e) => <li key={e.ref}><Time at={e.since} millis /><b>{e.kind}</b><span>{e.text} {e.incident && <a href={`/incidents/${e.incident}`}>{e.incident}</a>}</span></li>)}</ol>}
        </Panel>
      </div>
      <aside>
        <Panel title="Attribution"><table class="facts"><tbody>
          <tr><th>Workload</th><td>{held ?? (fleet?.workloads ? "none" : "unknown")}</td></tr>
          {facts.map(([name, value]) => value ? <tr key={name}><th>{name}</th><td>{value}</td></tr> : null)}
        </tbody></table></Panel>
        <Panel title="Incidents" hint={String(incidents.length)}>
          {incidents.length === 0 ? <Empty title="None so far" /> : incidents.slice(0, 5).map((c) => <IncidentCard card={c} key={c.id} />)}
        </Panel>
      </aside>
    </main>
  );
}
