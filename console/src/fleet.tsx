// The fleet page: figures with their meaning, the map, the last hour, and what is open.

import { useMemo } from "preact/hooks";
import { cardMarks, FLEET_STRIPS } from "./charts";
import { count, percent, quantity, watts } from "./format";
import { HeatMap, heat, STATES } from "./heatmap";
import { chooseColour, now, useHub } from "./hub";
import { Empty, IncidentCard, Panel, Skeleton } from "./parts";
import { put } from "./router";
import { Strips } from "./strips";
import type { FleetNode, Gpu, Summary } from "./types";

export const RANGES: Record<string, number> = { "15m": 900e3, "1h": 3600e3, "6h": 21600e3 };

function Tile(p: { name: string; value: string; meaning: string; id: string; tone?: string }) {
  return <div class="panel tile" data-testid={p.id}><span>{p.name}</span><b class={p.value === "unknown" ? "unknown" : p.tone}>{p.value}</b><span>{p.meaning}</span></div>;
}
function Tiles({ s, open }: { s?: Summary; open?: { severity: string; state: string }[] }) {
  if (!s) return <div class="tiles">{[1, 2, 3, 4, 5, 6].map((i) => <div class="panel tile" key={i}><Skeleton lines={3} /></div>)}</div>;
  const sick = [[s.down, "down"], [s.event, "with an event"], [s.throttled, "throttled"], [s.silent, "not reporting"], [s.unknown, "unknown"]] as const;
  const trouble = sick.filter(([n]) => n > 0).map(([n, text]) => `${count(n)} ${text}`);
  const by = (severity: string) => open?.filter((i) => i.severity === severity).length ?? 0;
  const tiers = (["critical", "warning", "info"] as const).filter(by).map((t) => `${by(t)} ${t}`);
  const seen = s.gpus - s.silent - s.unknown;
  return (
    <div class="tiles" data-testid="tiles">
      <Tile id="tile-gpus" name="GPUs" value={count(s.gpus)} meaning={[`${count(s.ok + s.held_idle)} healthy`, ...trouble].join(" · ")} />
      <Tile id="tile-working" name="Doing work (SM active, 5 min)" value={percent(s.working_percent)}
        meaning={`allocated ${s.held == null || !s.gpus ? "unknown" : percent((100 * s.held) / s.gpus)} · GPU_UTIL says ${percent(s.gpu_util_percent)}`} />
      <Tile id="tile-idle" name="Idle but held" value={s.held == null ? "unknown" : count(s.held_idle)} meaning={s.held == null ? "no attribution" : `of ${count(s.held)} held · ${count(s.teams)} teams`} />
      <Tile id="tile-power" name="Power" value={watts(s.power_watts)} meaning={s.power_watts == null ? "no reading" : `${watts(s.power_watts / Math.max(1, seen))} each · ${count(s.throttled)} throttled`} />
      <Tile id="tile-incidents" name="Incidents" value={open ? count(open.length) : "unknown"} meaning={tiers.join(" · ") || "none open"} tone={by("critical") ? "bad" : by("warning") ? "warn" : ""} />
      <Tile id="tile-nodes" name="Nodes" value={count(s.nodes)} meaning={s.nodes_reporting === s.nodes ? "all report" : `${count(s.nodes_reporting)} report, ${count(s.nodes - s.nodes_reporting)} silent`} />
    </div>
  );
}

export function FleetPage({ address, theme, selected }: { address: URL; theme: string; selected: number }) {
  const { status, fleet, frame, open, closed, colour: chosen } = useHub();
  const q = address.searchParams.get("q") ?? "", span = address.searchParams.get("range") ?? "1h";
  const colour = status?.colours[chosen];
  const workloads = fleet?.workloads;
  const matches = useMemo(() => (q ? finder(q, workloads ?? {}) : undefined), [q, workloads]);
  const end = Math.ceil(now() / 15000) * 15000, start = end - (RANGES[span] ?? RANGES["1h"]);
  const racks = fleet && new Set(fleet.nodes.map((n) => n.rack)).size;
  return (
    <main class="columns">
      <div>
        <Tiles s={frame?.summary} open={open} />
        <Panel title="Fleet" id="fleet-panel" hint={fleet && colour && `${racks} ${racks === 1 ? "rack" : "racks"} · each row a node${q ? ` · showing “${q}”` : ""}`}
          side={status && <label class="pick">coloured by <select data-testid="colour" value={chosen} onChange={(e) => { put("colour", e.currentTarget.value); chooseColour(e.currentTarget.value); }}>
            {Object.entries(status.colours).map(([id, c]) => <option value={id} key={id}>{c.title}</option>)}</select></label>}>
          {!fleet || !colour ? <Skeleton height={260} />
            : fleet.nodes.length === 0 ? <Empty title="No node has been found yet">The hub has no targets. Give it a file_sd file or an http_sd address under [fleet], or start a simulated fleet with `watchkeeper up`.</Empty>
            : <HeatMap fleet={fleet} frame={frame} colour={colour} matches={matches} theme={theme} />}
          {colour && <div class="legend" data-testid="legend">
            <span class="ramp"><i>{quantity(colour.low, colour.unit)}</i>{[0, .25, .5, .75, 1].map((s) => <em key={s} style={{ background: heat(s) }} />)}<i>{quantity(colour.high, colour.unit)}</i></span>
            {STATES.slice(1, 6).map((s) => <span key={s.name} class={s.name}><i aria-hidden="true">{s.glyph}</i> {s.text}</span>)}
          </div>}
        </Panel>
        <Panel title="Now" hint="allocated, working, power · incidents drawn in" id="now-panel">
          {status ? <Strips id="now" strips={FLEET_STRIPS} start={start} end={end} marks={cardMarks([...(open ?? []), ...(closed ?? [])])} theme={theme} band={38} /> : <Skeleton height={140} />}
        </Panel>
      </div>
      <aside>
        <Panel title="Open incidents" hint={open && String(open.length)} id="open-incidents">
          {!open ? <Skeleton lines={5} /> : open.length === 0
            ? <Empty title="Nothing is open">{frame ? `${count(frame.summary.gpus)} GPUs on ${count(frame.summary.nodes)} nodes were looked at` : "Waiting for the first picture of the fleet"}{frame && <>, last at <span>{frame.at.slice(11, 19)} UTC</span></>}.</Empty>
            : open.map((card, i) => <IncidentCard card={card} key={card.id} selected={i === selected} />)}
          {closed && closed.length > 0 && <><h2 class="gap">Just closed</h2>{closed.map((card) => <IncidentCard card={card} key={card.id} />)}</>}
        </Panel>
      </aside>
    </main>
  );
}

/** Whether a GPU belongs to what was typed: a node, rack, UUID, model or workload. */
export function finder(q: string, workloads: Record<string, string>): (node: FleetNode, gpu: Gpu | null) => boolean {
  const needle = q.toLowerCase();
  return (node, gpu) => `${node.name} ${node.rack ?? ""} ${node.pool} ${gpu ? `${gpu.uuid} ${gpu.model ?? ""} ${workloads[gpu.uuid] ?? ""}` : ""}`.toLowerCase().includes(needle);
}
