// The fleet as a map or a list, with its filters and its legend.

import { useMemo, useState } from "preact/hooks";
import { HeatMap } from "../../components/heatmap";
import { type Cell, heatColour, type Paint } from "../../components/heatmap_layout";
import { Chip, Choice, Empty, Panel, Skeleton } from "../../components/parts";
import { type Column, Table } from "../../components/table";
import { request } from "../../lib/api";
import { count, plural, quantity } from "../../lib/format";
import { type GpuFilter, parseFilter } from "../../lib/gpu_filter";
import type { Frame } from "../../lib/live_types";
import { param, setParam, to, withParams } from "../../lib/router";
import { outOfService, STATES } from "../../lib/states";
import { now } from "../../lib/store";
import type { Fleet, FleetNode, Status } from "../../lib/types";
import { GROUPS, type Grouped, usePaint } from "./paint";

interface MapProps {
  address: URL;
  theme: string;
  chosen: string;
  q: string;
  status?: Status;
  fleet?: Fleet;
  frame?: Frame;
}

export function MapPanel({ address, theme, chosen, q, status, fleet, frame }: MapProps) {
  const filter = useMemo(() => (q ? parseFilter(q, fleet) : undefined), [q, fleet]);
  const domains = useMemo(() => [...new Set(fleet?.nodes.flatMap((n) => Object.keys(n.domains)) ?? [])], [fleet]);
  const by = param(address, "by", "rack");
  const showsList = param(address, "view") === "list";
  const paint = usePaint(chosen, status, fleet, frame);
  // A filter by place shows only that place, with node names; any other filter dims the GPUs that do not match.
  const nodeFilter = useMemo(
    () =>
      filter && q.split(/\s+/).every((word) => /^(rack|node|leaf|nvlink|pool):/.test(word))
        ? (node: FleetNode) => filter(node, null)
        : undefined,
    [filter],
  );
  const matchCount = useMemo(
    () => (filter && fleet ? countMatches(fleet, filter, frame) : null),
    [filter, fleet, frame],
  );
  const blocks = fleet && new Set(fleet.nodes.map((n) => n.domains[by] ?? (by === "rack" ? n.rack : n.pool))).size;
  return (
    <Panel
      title="Fleet"
      id="fleet-panel"
      class="map"
      hint={fleet && blocks != null && `${plural(blocks, by)} · one row per node · select a cell to open its GPU`}
      side={
        <div class="pick">
          {domains.length > 1 && (
            <label>
              by{" "}
              <select
                data-testid="by"
                value={by}
                onChange={(e) => setParam("by", e.currentTarget.value === "rack" ? null : e.currentTarget.value)}
              >
                {[...domains, "pool"].map((d) => (
                  <option key={d}>{d}</option>
                ))}
              </select>
            </label>
          )}
          {status && <ColourChoice status={status} chosen={chosen} />}
          {/* Last, so that the controls that appear with the first answers do not move it. */}
          <Choice
            label="View"
            value={showsList ? "list" : ""}
            options={[
              ["", "Map"],
              ["list", "List"],
            ]}
            choose={(v) => setParam("view", v || null)}
            id="view"
          />
        </div>
      }
    >
      {filter && (
        <p class="chips filter" data-testid="filter">
          {q.split(/\s+/).map((word) => (
            <a
              class="chip"
              key={word}
              title="Remove this filter"
              href={withParams(address, {
                q: q
                  .split(/\s+/)
                  .filter((w) => w !== word)
                  .join(" "),
              })}
            >
              {word} ×
            </a>
          ))}
          <span class="dim small">
            {count(matchCount)} of {count(frame?.count)} GPUs match
          </span>
        </p>
      )}
      {!fleet || !paint ? (
        <Skeleton height={300} />
      ) : fleet.nodes.length === 0 ? (
        <Empty title="No nodes yet">
          The hub has no targets. Set Prometheus file_sd files in <code>sd_files</code> or http_sd addresses in{" "}
          <code>sd_urls</code> under <code>[fleet]</code>, or start a simulated fleet with <code>watchkeeper up</code>.
        </Empty>
      ) : matchCount === 0 ? (
        <Empty title="No GPU matches">
          {q} · <a href={withParams(address, { q: null })}>clear the filter</a>
        </Empty>
      ) : showsList ? (
        <GpuList {...{ fleet, frame, paint, filter, address }} />
      ) : (
        <HeatMap
          fleet={fleet}
          frame={frame}
          paint={paint}
          filter={nodeFilter ? undefined : filter}
          nodeFilter={nodeFilter}
          by={by}
          theme={theme}
          chooseBlock={(name) => setParam("q", nodeFilter ? null : `${by}:${name}`)}
        />
      )}
      {paint && (
        <div class="legend" data-testid="legend">
          {"entries" in paint && <GroupLegend paint={paint} address={address} />}
          {[...STATES.slice(1, 6), STATES[7]].map((s) => (
            <span key={s.name} class={s.name}>
              <i aria-hidden="true">{s.glyph}</i> {s.text}
            </span>
          ))}
          {!("entries" in paint) && frame && (
            <span class="ramp">
              <i>{quantity(frame.low, paint.unit)}</i>
              {[0, 0.25, 0.5, 0.75, 1].map((s) => (
                <em key={s} style={{ background: heatColour(s) }} />
              ))}
              <i>{quantity(frame.high, paint.unit)}</i>
            </span>
          )}
        </div>
      )}
    </Panel>
  );
}

function GroupLegend({ paint, address }: { paint: Grouped; address: URL }) {
  return (
    <>
      {paint.entries.map((e) => (
        <a
          key={e.name}
          class="entry"
          href={
            e.name === "others" || e.name === "none"
              ? undefined
              : withParams(address, { q: `${paint.label}:${e.name.split(" ").at(-1)}` })
          }
        >
          <em style={{ background: e.colour }} />
          {e.name} <b>{count(e.gpus)}</b>
        </a>
      ))}
    </>
  );
}

/** The metrics with titles, the groups, and all other metrics of GPUs by name. */
function ColourChoice({ status, chosen }: { status: Status; chosen: string }) {
  const [metrics, setMetrics] = useState<string[] | null>(null);
  const listedNames = new Set([
    ...Object.values(status.colours).map((c) => c.metric),
    ...Object.keys(status.colours),
    ...Object.keys(GROUPS),
  ]);
  const recentStart = String(Math.floor(now() / 1000) - 300);
  const load = () => {
    if (!metrics)
      request<{ data: string[] }>(
        `/api/v1/label/__name__/values?${new URLSearchParams({ "match[]": '{UUID!=""}', start: recentStart })}`,
      ).then(
        ({ data }) => setMetrics(data),
        () => setMetrics([]),
      );
  };
  const otherMetrics = (metrics ?? []).filter((name) => !listedNames.has(name) && !name.startsWith("ALERTS"));
  const isListed = chosen in status.colours || chosen in GROUPS || otherMetrics.includes(chosen);
  return (
    <label>
      coloured by{" "}
      <select
        data-testid="colour"
        value={chosen}
        onFocus={load}
        onPointerDown={load}
        onChange={(e) => setParam("colour", e.currentTarget.value === "sm_active" ? null : e.currentTarget.value)}
      >
        <optgroup label="Metrics">
          {Object.entries(status.colours).map(([id, c]) => (
            <option value={id} key={id}>
              {c.title} · {c.metric}
            </option>
          ))}
        </optgroup>
        <optgroup label="Groups">
          {Object.entries(GROUPS).map(([id, text]) => (
            <option value={id} key={id}>
              {text}
            </option>
          ))}
        </optgroup>
        {!isListed && <option value={chosen}>{chosen}</option>}
        {otherMetrics.length > 0 && (
          <optgroup label="All metrics">
            {otherMetrics.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </optgroup>
        )}
      </select>
    </label>
  );
}

function countMatches(fleet: Fleet, filter: GpuFilter, frame: Frame | undefined): number {
  let slot = 0;
  let matches = 0;
  for (const node of fleet.nodes)
    for (const gpu of node.gpus) matches += Number(filter(node, gpu, frame?.states[slot++]));
  return matches;
}

function GpuList({
  fleet,
  frame,
  paint,
  filter,
  address,
}: {
  fleet: Fleet;
  frame?: Frame;
  paint: Paint;
  filter?: GpuFilter;
  address: URL;
}) {
  const rows: (Cell & { state: number; value: number })[] = [];
  let slot = 0;
  for (const node of fleet.nodes)
    for (const gpu of node.gpus) {
      const state = frame?.states[slot] ?? 6;
      if (!filter || filter(node, gpu, state))
        rows.push({ x: 0, y: 0, node, gpu, slot, state, value: frame?.values[slot] ?? NaN });
      slot++;
    }
  type Row = (typeof rows)[number];
  const holder = (r: Row) => r.gpu?.workload ?? null;
  const columns: Column<Row>[] = [
    {
      id: "node",
      title: "Node",
      value: (r) => r.node.name,
      cell: (r) => <a href={to.node(r.node.name)}>{r.node.name}</a>,
    },
    {
      id: "gpu",
      title: "GPU",
      numeric: true,
      value: (r) => r.gpu?.index,
      cell: (r) => (r.gpu ? <a href={to.gpu(r.gpu.uuid)}>{r.gpu.index ?? "?"}</a> : "never reported"),
    },
    {
      id: "state",
      title: "State",
      value: (r) => STATES[r.state].text,
      cell: (r) => (
        <>
          <Chip tone={STATES[r.state].name}>
            {STATES[r.state].glyph} {STATES[r.state].text}
          </Chip>{" "}
          <small class="plain">{outOfService(frame, fleet, r.node.name)}</small>
        </>
      ),
    },
    {
      id: "value",
      title: paint.title,
      numeric: true,
      value: (r) => (Number.isNaN(r.value) ? null : r.value),
      cell: (r) => paint.describe(r, r.value).replace(/^.*?: /, ""),
    },
    { id: "workload", title: "Allocated to", value: holder, cell: (r) => holder(r) ?? "none" },
    {
      id: "team",
      title: "Team",
      minor: true,
      value: (r) => fleet.teams?.[holder(r) ?? ""] || null,
      cell: (r) => fleet.teams?.[holder(r) ?? ""] || "–",
    },
    { id: "rack", title: "Rack", minor: true, value: (r) => r.node.rack, cell: (r) => r.node.rack ?? "–" },
    {
      id: "uuid",
      title: "UUID",
      minor: true,
      value: (r) => r.gpu?.uuid,
      cell: (r) => <code>{r.gpu?.uuid.slice(0, 12) ?? "–"}</code>,
    },
  ];
  return (
    <Table
      id="gpus"
      caption="GPUs of the fleet"
      columns={columns}
      rows={rows}
      rowKey={(r) => String(r.slot)}
      rowTestId="gpu-row"
      href={(r) => (r.gpu ? to.gpu(r.gpu.uuid) : to.node(r.node.name))}
      address={address}
      empty={<Empty title="No GPU matches" />}
      maxRows={100}
    />
  );
}
