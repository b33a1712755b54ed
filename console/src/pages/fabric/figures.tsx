// Summary of the fabric, its spines, and the legend of the map.

import { heatColour } from "../../components/heatmap_layout";
import { Empty, Tile } from "../../components/parts";
import { MARKS, MEASURES, type Measure, markOf } from "../../components/portmap_layout";
import { count, plural, shortDuration } from "../../lib/format";
import { withParams } from "../../lib/router";
import { now } from "../../lib/store";
import { type FabricMap, WINDOWS } from "./labels";

export function FabricFigures({ map, address }: { map: FabricMap; address: URL }) {
  const { counts } = map;
  const span = WINDOWS.find(([w]) => w === map.window)?.[1];
  const hasCounters = counts.uncounted < counts.links;
  const rows = map.source === "sweep" ? leafCount(map.rows.length) : plural(map.rows.length, "row");
  return (
    <section class="tiles even gap-below" aria-label="summary of the fabric">
      <Tile
        name="Links"
        value={count(counts.links)}
        meaning={`${rows} · ${map.spines.length ? plural(map.spines.length, "spine") : "spines unknown"}`}
        id="tile-links"
      />
      <Tile
        name="Down"
        value={count(counts.down)}
        tone={counts.down ? "bad" : undefined}
        meaning={
          [
            counts.unknown && `${count(counts.unknown)} unknown`,
            counts.mute_nodes &&
              `${plural(counts.mute_nodes, "node")} report${counts.mute_nodes === 1 ? "s" : ""} no ports`,
          ]
            .filter(Boolean)
            .join(" · ") || "no link state is unknown"
        }
        id="tile-down"
        href={withParams(address, { only: "trouble" })}
      />
      <Tile
        name="Slow"
        value={map.source === "sweep" ? count(counts.slow) : "unknown"}
        tone={counts.slow ? "warn" : undefined}
        meaning={map.source === "sweep" ? "slower than other ports of the same switch" : "needs a fabric sweep"}
        id="tile-slow"
      />
      <Tile
        name={`Links with errors, ${span}`}
        value={hasCounters ? count(counts.errs) : "unknown"}
        tone={counts.errs ? "bad" : undefined}
        meaning={
          hasCounters
            ? ["over 120 / h or a severe error", counts.uncounted && `${count(counts.uncounted)} without counters`]
                .filter(Boolean)
                .join(" · ")
            : "no error counters reported"
        }
        id="tile-errors"
      />
      <Tile
        name="Congested"
        value={map.rows.some((r) => r.cells.some((c) => c[6] != null)) ? count(counts.waits) : "unknown"}
        tone={counts.waits ? "warn" : undefined}
        meaning="send wait is 8× that of similar links"
        id="tile-waits"
      />
      <Tile
        name="Jobs on bad links"
        value={count(counts.jobs)}
        tone={counts.jobs ? "warn" : undefined}
        meaning={counts.jobs ? "one slow link delays all ranks of a job" : "no running job uses a bad link"}
        id="tile-jobs"
      />
    </section>
  );
}

const leafCount = (n: number) => `${count(n)} ${n === 1 ? "leaf" : "leaves"}`;

export function Source({ map }: { map: FabricMap }) {
  if (map.source === "sweep")
    return (
      <>
        swept {map.swept_at && <>{shortDuration(now() - Date.parse(map.swept_at))} ago </>}· one row per leaf: trunks,
        then nodes
      </>
    );
  if (map.source !== "hosts") return <>unknown</>;
  return (
    <>
      from node ports · switches and trunks unknown · one row per leaf or rack of the inventory, ports grouped by node
    </>
  );
}

const NODE_PORTS_TEXT = "Nodes with InfiniBand ports report them through node_exporter or the agent.";

export function NoFabric() {
  return (
    <Empty title="No fabric data">
      {NODE_PORTS_TEXT} To see switches and trunks too, set <code>sweep</code> or <code>ufm_url</code> under{" "}
      <code>[fabric]</code>, or run <code>watchkeeper fabric sweep --push</code> on a node with an InfiniBand adapter.
    </Empty>
  );
}

const SPINE: Record<string, { tone: string; glyph: string }> = {
  healthy: { tone: "", glyph: "✓" },
  gone: { tone: "critical", glyph: "✕" },
  unknown: { tone: "", glyph: "–" },
  other: { tone: "warning", glyph: "▲" },
};

export function Spines({ map, row, address }: { map: FabricMap; row: string; address: URL }) {
  return (
    <p class="spines" aria-label="spines">
      <span class="dim">Spines</span>
      {map.spines.map((s) => (
        <a
          key={s.name}
          class={`chip ${(SPINE[s.state] ?? SPINE.other).tone}`}
          aria-current={s.name === row || undefined}
          title={s.trouble.join("\n") || `${plural(s.links, "link")}, no change`}
          href={withParams(address, { row: s.name === row ? null : s.name })}
        >
          <i aria-hidden="true">{(SPINE[s.state] ?? SPINE.other).glyph}</i> {s.name}
          {s.state !== "healthy" && ` · ${s.state}`}
        </a>
      ))}
    </p>
  );
}

export function Legend({ measure, map }: { measure: Measure; map: FabricMap }) {
  const cells = map.rows.flatMap((r) => r.cells);
  const presentMarks = new Set(cells.map((c) => markOf(c, map.states)));
  const [low, mid, high] = MEASURES[measure].ticks;
  return (
    <div class="legend" data-testid="fabric-legend">
      <span class="ramp">
        <i>{low}</i>
        {[0, 0.25, 0.5, 0.75, 1].map((s) => (
          <em key={s} style={{ background: heatColour(s) }} />
        ))}
        <i>{high}</i>
      </span>
      <span>
        {MEASURES[measure].title}
        {measure === "errors" && `, log scale, middle ${mid}`}
        {measure === "wait" && ", relative to the median"}
      </span>
      {MARKS.map((m) => (
        <span key={m.name} class={presentMarks.has(m.name) ? m.name : "dim"}>
          <i aria-hidden="true">{m.glyph}</i> {m.text}
        </span>
      ))}
    </div>
  );
}
