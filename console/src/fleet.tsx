// The fleet page: figures with their meaning, the map or the same as a list, the last hour, and what is open.

import { useEffect, useMemo, useState } from "preact/hooks";
import { cardMarks, FLEET_STRIPS, spanOf } from "./charts";
import { finder, type Fits } from "./find";
import { clock, count, dollars, many, percent, quantity, utc, watts } from "./format";
import { HeatMap, heat, scaled, type Cell, type Paint } from "./heatmap";
import { ask, chooseColour, now, useAsk, useHub } from "./hub";
import { Chip, Choice, Empty, IncidentCard, Panel, Skeleton, STATES, Tile } from "./parts";
import { param, put, to, withParams, type PageProps } from "./router";
import { Strips } from "./strips";
import { Table, type Column } from "./table";
import type { Frame, Summary } from "./live";
import type { Fleet, FleetNode, Gpu, Status } from "./types";

interface Full { reason: string | null; full?: { full_at: string | null; earliest: string | null; latest: string | null }; sentence: string }
function Tiles({ s, open, price }: { s?: Summary; open?: { severity: string; state: string }[]; price: number }) {
  const { answer, problem } = useAsk<Full>(s ? "/api/capacity/forecast?horizon=30d" : "", Math.floor(now() / 3600000));
  if (!s) return <div class="tiles steady">{[1, 2, 3, 4, 5, 6].map((i) => <div class="panel tile" key={i}><Skeleton lines={3} /></div>)}</div>;
  const sick = [[s.down, "down"], [s.event, s.event === 1 ? "event" : "events"], [s.throttled, "throttled"], [s.silent, "not reporting"], [s.unknown, "unknown"]] as const;
  const trouble = sick.filter(([n]) => n > 0).map(([n, text]) => `${count(n)} ${text}`);
  const by = (severity: string) => open?.filter((i) => i.severity === severity).length ?? 0;
  const tiers = (["critical", "warning", "info"] as const).filter(by).map((t) => `${by(t)} ${t}`);
  const seen = s.gpus - s.silent - s.unknown, isBlind = s.gpus > 0 && seen === 0, silent = s.nodes - s.nodes_reporting;
  return (
    <div class="tiles steady" data-testid="tiles">
      <Tile id="tile-gpus" name={`GPUs, ${many(s.nodes, "node")}`} value={count(s.gpus)} meaning={[...trouble, silent && !s.silent ? `${many(silent, "node")} silent` : "", `${count(s.ok + s.held_idle)} healthy`].filter(Boolean).join(" · ")} />
      <Tile id="tile-working" name="Working (SM active)" value={percent(s.working_percent)}
        meaning={`allocated ${percent(s.allocated_percent)} · GPU_UTIL says ${percent(s.gpu_util_percent)}`} />
      <Tile id="tile-idle" name="Idle but held" value={s.held == null || isBlind || !s.gpus ? "unknown" : count(s.held_idle)} href={s.held_idle ? to.fleet("state:held_idle") : undefined}
        meaning={!s.gpus ? "no GPU was found yet" : isBlind ? "no GPU reports" : s.held == null ? "no attribution" : s.held_idle ? `${dollars(s.held_idle * price)} / h · ${many(s.idle_teams, "team")} · ${count(s.free)} free` : `of ${count(s.held)} held · ${count(s.free)} free`} />
      <Tile id="tile-power" name="Power" value={watts(s.power_watts)} meaning={s.power_watts == null ? "no reading" : `${watts(s.power_watts / Math.max(1, seen))} each · ${count(s.throttled)} throttled`} />
      <Tile id="tile-incidents" name="Incidents" value={open ? count(open.length) : "unknown"} meaning={tiers.join(" · ") || "none open"} tone={by("critical") ? "bad" : by("warning") ? "warn" : ""} href="/incidents" />
      <Tile id="tile-full" name="Full on" {...fullness(answer, problem)} />
    </div>
  );
}
function fullness(answer?: Full, problem?: { message: string; status: number }) {
  if (problem || answer?.reason) return { value: "unknown", meaning: problem ? problem.message : "too few samples so far" };
  if (!answer) return { value: "…", meaning: "asking the forecast" };
  if (!answer.full) return { value: "unknown", meaning: "no GPU reports" };
  const { full_at, earliest, latest } = answer.full, short = (iso: string) => new Date(iso).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  if (!full_at) return { value: "not in 30 d", meaning: earliest ? `80 %: not before ${short(earliest)}` : "at the present growth" };
  return { value: short(full_at), meaning: `80 %: ${earliest ? short(earliest) : "now"} – ${latest ? short(latest) : "later"}` };
}

const reporting = (s: Summary) => (s.silent ? `${count(s.gpus - s.silent)} of ${many(s.gpus, "GPU")}` : many(s.gpus, "GPU"));

const GROUPS = { state: "State", workload: "Workload", team: "Team", pool: "Pool", model: "Model" } as const;
type Group = keyof typeof GROUPS;
const PALETTE = ["#5aa9ff", "#46b884", "#e0a526", "#c58cf2", "#f08a5d", "#4fc3d9", "#d98ba8", "#a3b85c"], OTHERS = "#6b7688";

export function FleetPage({ address, theme }: PageProps) {
  const { status, fleet, frame, open, closed } = useHub();
  const chosen = param(address, "colour", "sm_active"), q = param(address, "q");
  useEffect(() => chooseColour(chosen in GROUPS ? "sm_active" : chosen), [chosen]);
  const end = Math.floor(now() / 15000) * 15000;
  const marks = useMemo(() => cardMarks([...(open ?? []), ...(closed ?? [])]), [open, closed]);
  return (
    <main class="columns answers">
      <div>
        <Tiles s={frame?.summary} open={open} price={status?.dollars_per_gpu_hour ?? 0} />
        <MapPanel {...{ address, theme, chosen, q, status, fleet, frame }} />
        {/* Below the map, so it comes when the map has its height: nothing that is being read moves. */}
        {fleet && status && <Panel title="Now" hint="allocated, working, power · incidents drawn in" id="now-panel">
          {frame ? <Strips id="now" name="Share of GPUs allocated and working, and power" strips={FLEET_STRIPS} start={end - spanOf(address)} end={end} marks={marks} theme={theme} band={38} /> : <Skeleton height={190} />}
        </Panel>}
      </div>
      <aside>
        <Panel title="Open incidents" hint={open && String(open.length)} id="open-incidents">
          {!open ? <Skeleton lines={5} /> : open.length === 0
            ? <Empty title="Nothing is open">{frame ? !frame.summary.gpus ? "No GPU is watched yet" : `${reporting(frame.summary)} on ${many(frame.summary.nodes, "node")} ${frame.summary.silent ? "report" : "were looked at"}` : "Waiting for the first picture of the fleet"}{frame && <>, last at <time title={utc(frame.at)}>{clock(frame.at)}</time></>}.</Empty>
            : open.slice(0, 20).map((card) => <IncidentCard card={card} key={card.id} />)}
          {open && open.length > 20 && <p class="closed-too"><a href="/incidents">{many(open.length - 20, "more incident")}</a></p>}
          {open && open.length > 3 && <p class="narrow-only"><a href="/incidents">All {count(open.length)} open incidents</a></p>}
          {closed && closed.length > 0 && <div class="closed-too"><h2 class="gap">Just closed</h2>{closed.map((card) => <IncidentCard card={card} key={card.id} />)}</div>}
        </Panel>
      </aside>
    </main>
  );
}

interface MapProps { address: URL; theme: string; chosen: string; q: string; status?: Status; fleet?: Fleet; frame?: Frame }
function MapPanel({ address, theme, chosen, q, status, fleet, frame }: MapProps) {
  const fits = useMemo(() => (q ? finder(q, fleet) : undefined), [q, fleet]);
  const domains = useMemo(() => [...new Set(fleet?.nodes.flatMap((n) => Object.keys(n.domains)) ?? [])], [fleet]);
  const by = param(address, "by", "rack"), asList = param(address, "view") === "list";
  const paint = usePaint(chosen, status, fleet, frame);
  // A question about a place shows that place alone, with the names of its nodes; any other dims what does not fit.
  const only = useMemo(() => (fits && q.split(/\s+/).every((word) => /^(rack|node|leaf|nvlink|pool):/.test(word)) ? (node: FleetNode) => fits(node, null) : undefined), [fits]);
  const fitting = useMemo(() => (fits && fleet ? countFits(fleet, fits, frame) : null), [fits, fleet, frame]);
  const blocks = fleet && new Set(fleet.nodes.map((n) => n.domains[by] ?? (by === "rack" ? n.rack : n.pool))).size;
  return (
    <Panel title="Fleet" id="fleet-panel" class="map" hint={fleet && blocks != null && `${many(blocks, by)} · each row a node · a cell opens its GPU`}
      side={<div class="pick">
        {domains.length > 1 && <label>by <select data-testid="by" value={by} onChange={(e) => put("by", e.currentTarget.value === "rack" ? null : e.currentTarget.value)}>{[...domains, "pool"].map((d) => <option key={d}>{d}</option>)}</select></label>}
        {status && <ColourChoice status={status} chosen={chosen} />}
        {/* Last, at the edge: what comes with the first answers does not push it aside. */}
        <Choice label="Shown as" value={asList ? "list" : ""} options={[["", "Map"], ["list", "List"]]} choose={(v) => put("view", v || null)} id="view" />
      </div>}>
      {fits && <p class="chips filter" data-testid="filter">{q.split(/\s+/).map((word) => <a class="chip" key={word} title="Drop this filter" href={withParams(address, { q: q.split(/\s+/).filter((w) => w !== word).join(" ") })}>{word} ×</a>)}<span class="dim small">{count(fitting)} of {count(frame?.count)} GPUs fit</span></p>}
      {!fleet || !paint ? <Skeleton height={300} />
        : fleet.nodes.length === 0 ? <Empty title="No node has been found yet">The hub has no targets. Name Prometheus file_sd files in <code>sd_files</code> or http_sd addresses in <code>sd_urls</code> under <code>[fleet]</code>, or start a simulated fleet with <code>watchkeeper up</code>.</Empty>
        : fitting === 0 ? <Empty title="No GPU fits">{q} · <a href={withParams(address, { q: null })}>drop the filter</a></Empty>
        : asList ? <GpuList {...{ fleet, frame, paint, fits, address }} />
        : <HeatMap fleet={fleet} frame={frame} paint={paint} fits={only ? undefined : fits} only={only} by={by} theme={theme} chooseBlock={(name) => put("q", only ? null : `${by}:${name}`)} />}
      {paint && <div class="legend" data-testid="legend">
        {"entries" in paint && <Entries paint={paint} address={address} />}
        {STATES.slice(1, 6).map((s) => <span key={s.name} class={s.name}><i aria-hidden="true">{s.glyph}</i> {s.text}</span>)}
        {!("entries" in paint) && frame && <span class="ramp"><i>{quantity(frame.low, paint.unit)}</i>{[0, .25, .5, .75, 1].map((s) => <em key={s} style={{ background: heat(s) }} />)}<i>{quantity(frame.high, paint.unit)}</i></span>}
      </div>}
    </Panel>
  );
}

function Entries({ paint, address }: { paint: Grouped; address: URL }) {
  return <>{paint.entries.map((e) => (
    <a key={e.name} class="entry" href={e.name === "others" || e.name === "none" ? undefined : withParams(address, { q: `${paint.label}:${e.name.split(" ").at(-1)}` })}><em style={{ background: e.colour }} />{e.name} <b>{count(e.gpus)}</b></a>))}</>;
}

/** Plain words first, then the exporter's names; every other metric of a GPU is there by its own name. */
function ColourChoice({ status, chosen }: { status: Status; chosen: string }) {
  const [more, keep] = useState<string[] | null>(null);
  const known = new Set([...Object.values(status.colours).map((c) => c.metric), ...Object.keys(status.colours), ...Object.keys(GROUPS)]);
  const load = () => { if (!more) ask<{ data: string[] }>(`/api/v1/label/__name__/values?match[]=${encodeURIComponent('{UUID!=""}')}&start=${Math.floor(now() / 1000) - 300}`).then(({ data }) => keep(data), () => keep([])); };
  const rest = (more ?? []).filter((name) => !known.has(name) && !name.startsWith("ALERTS")), isListed = chosen in status.colours || chosen in GROUPS || rest.includes(chosen);
  return (
    <label>coloured by <select data-testid="colour" value={chosen} onFocus={load} onPointerDown={load} onChange={(e) => put("colour", e.currentTarget.value === "sm_active" ? null : e.currentTarget.value)}>
      <optgroup label="Readings">{Object.entries(status.colours).map(([id, c]) => <option value={id} key={id}>{c.title} · {c.metric}</option>)}</optgroup>
      <optgroup label="Groups">{Object.entries(GROUPS).map(([id, text]) => <option value={id} key={id}>{text}</option>)}</optgroup>
      {!isListed && <option value={chosen}>{chosen}</option>}
      {rest.length > 0 && <optgroup label="Every metric">{rest.map((name) => <option key={name}>{name}</option>)}</optgroup>}
    </select></label>
  );
}

type Grouped = Paint & { label: string; entries: { name: string; colour: string; gpus: number }[] };
function usePaint(chosen: string, status: Status | undefined, fleet: Fleet | undefined, frame: Frame | undefined): Paint | Grouped | undefined {
  const group = chosen in GROUPS ? (chosen as Group) : null, low = frame?.low, high = frame?.high, states = group === "state" ? frame : undefined;
  // The status is asked for again and again; a map is only drawn anew when what it says about the colour is new.
  const { title, unit } = status?.colours[chosen] ?? { title: chosen, unit: "" }, isKnown = Boolean(status);
  return useMemo(() => {
    if (!isKnown || !fleet) return undefined;
    return group ? grouped(group, fleet, states) : scaled(title, unit, low ?? 0, high ?? 1);
  }, [isKnown, fleet, group, title, unit, low, high, states]);
}
function grouped(group: Group, fleet: Fleet, frame: Frame | undefined): Grouped {
  const of = (node: FleetNode, gpu: Gpu | null, slot: number): string => {
    const workload = gpu?.workload ?? "";
    return { state: () => (frame ? STATES[frame.states[slot]].name : "unknown"), workload: () => workload, team: () => fleet.teams?.[workload] ?? "", pool: () => node.pool, model: () => gpu?.model ?? "" }[group]() || "none";
  };
  const sizes = new Map<string, number>();
  let slot = 0;
  for (const node of fleet.nodes) for (const gpu of node.gpus) { const name = of(node, gpu, slot++); sizes.set(name, (sizes.get(name) ?? 0) + 1); }
  const ranked = [...sizes].filter(([name]) => name !== "none").sort((a, b) => b[1] - a[1]);
  const colours = new Map(ranked.slice(0, PALETTE.length).map(([name], i) => [name, group === "state" && name === "ok" ? heat(0.55) : PALETTE[i]]));
  const rest = ranked.slice(PALETTE.length).reduce((sum, [, n]) => sum + n, 0), none = sizes.get("none") ?? 0;
  const colour = (cell: Cell) => { const name = of(cell.node, cell.gpu, cell.slot); return name === "none" ? heat(0) : (colours.get(name) ?? OTHERS); };
  return {
    title: GROUPS[group], unit: "", label: group, colour, tell: (cell) => `${GROUPS[group]}: ${of(cell.node, cell.gpu, cell.slot)}`,
    entries: [...[...colours].map(([name, shade]) => ({ name, colour: shade, gpus: sizes.get(name)! })), ...(rest ? [{ name: "others", colour: OTHERS, gpus: rest }] : []), ...(none ? [{ name: "none", colour: heat(0), gpus: none }] : [])],
  };
}

function countFits(fleet: Fleet, fits: Fits, frame: Frame | undefined): number {
  let slot = 0, found = 0;
  for (const node of fleet.nodes) for (const gpu of node.gpus) found += Number(fits(node, gpu, frame?.states[slot++]));
  return found;
}

function GpuList({ fleet, frame, paint, fits, address }: { fleet: Fleet; frame?: Frame; paint: Paint; fits?: Fits; address: URL }) {
  const rows: (Cell & { state: number; value: number })[] = [];
  let slot = 0;
  for (const node of fleet.nodes) for (const gpu of node.gpus) {
    const state = frame?.states[slot] ?? 6;
    if (!fits || fits(node, gpu, state)) rows.push({ x: 0, y: 0, node, gpu, slot, state, value: frame?.values[slot] ?? NaN });
    slot++;
  }
  type Row = (typeof rows)[number];
  const holder = (r: Row) => r.gpu?.workload ?? null;
  const columns: Column<Row>[] = [
    { id: "node", title: "Node", value: (r) => r.node.name, cell: (r) => <a href={to.node(r.node.name)}>{r.node.name}</a> },
    { id: "gpu", title: "GPU", numeric: true, value: (r) => r.gpu?.index, cell: (r) => (r.gpu ? <a href={to.gpu(r.gpu.uuid)}>{r.gpu.index ?? "?"}</a> : "never reported") },
    { id: "state", title: "State", value: (r) => STATES[r.state].text, cell: (r) => <Chip tone={STATES[r.state].name}>{STATES[r.state].glyph} {STATES[r.state].text}</Chip> },
    { id: "value", title: paint.title, numeric: true, value: (r) => (Number.isNaN(r.value) ? null : r.value), cell: (r) => paint.tell(r, r.value).replace(/^.*?: /, "") },
    { id: "workload", title: "Held by", value: holder, cell: (r) => holder(r) ?? "nobody" },
    { id: "team", title: "Team", minor: true, value: (r) => fleet.teams?.[holder(r) ?? ""] || null, cell: (r) => fleet.teams?.[holder(r) ?? ""] || "–" },
    { id: "rack", title: "Rack", minor: true, value: (r) => r.node.rack, cell: (r) => r.node.rack ?? "–" },
    { id: "uuid", title: "UUID", minor: true, value: (r) => r.gpu?.uuid, cell: (r) => <code>{r.gpu?.uuid.slice(0, 12) ?? "–"}</code> },
  ];
  return <Table id="gpus" caption="GPUs of the fleet" columns={columns} rows={rows} rowKey={(r) => String(r.slot)} rowTestId="gpu-row" href={(r) => (r.gpu ? to.gpu(r.gpu.uuid) : to.node(r.node.name))} address={address} empty={<Empty title="No GPU fits" />} most={100} />;
}
