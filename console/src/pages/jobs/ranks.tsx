// The ranks of a job as bars and as table columns.

import { Chip, MarkedText } from "../../components/parts";
import type { Column } from "../../components/table";
import { duration } from "../../lib/durations";
import { count, percent, percentOf } from "../../lib/format";
import { to } from "../../lib/router";
import { type Rank, type Straggler, stragglerKind } from "./labels";

/** One bar per rank: its step time, or its SM activity if the job reports no steps; a glyph marks the straggler. */
export function Ranks({ ranks, straggler }: { ranks: Rank[]; straggler: Straggler | null }) {
  const hasSteps = ranks.some((r) => r.step_seconds != null);
  const value = (r: Rank) => (hasSteps ? r.step_seconds : r.sm_active);
  const measured = ranks.filter((r) => value(r) != null);
  if (measured.length < 2) return null;
  const highest = Math.max(...measured.map((r) => value(r)!));
  if (highest === 0)
    return (
      <p class="hint gap-below">{hasSteps ? "No rank finished a step recently." : "No rank was active recently."}</p>
    );
  const shown = ranks.slice(0, 256);
  return (
    <figure
      class="ranks"
      aria-label={`${hasSteps ? "Step time" : "SM activity"} of ${measured.length} ranks`}
      data-testid="rank-bars"
    >
      <figcaption class="hint">
        {hasSteps ? `step time, longest ${duration(highest)}` : "SM active by rank, highest "}
        {!hasSteps && percentOf(highest)}
        {ranks.length > 256 && " · first 256 ranks"}
      </figcaption>
      <div>
        {shown.map((r, i) => {
          const isStraggler = straggler && (straggler.uuid ? straggler.uuid === r.uuid : straggler.rank === r.rank);
          const v = value(r);
          return (
            <a
              key={`${r.rank} ${r.uuid}`}
              href={to.gpu(r.uuid)}
              class={isStraggler ? "straggler" : r.state}
              title={describeRank(r, hasSteps)}
              aria-label={`rank ${r.rank ?? i}`}
              tabIndex={-1}
            >
              {isStraggler && <em aria-hidden="true">▲</em>}
              <i style={{ height: `${v == null ? 0 : Math.max(2, (100 * v) / highest)}%` }} />
              {v == null && <b aria-hidden="true">–</b>}
            </a>
          );
        })}
      </div>
    </figure>
  );
}

function describeRank(r: Rank, bySteps: boolean): string {
  const name = `${r.rank == null ? `GPU ${r.gpu}` : `rank ${r.rank}`} on ${r.node}`;
  const value = bySteps ? duration(r.step_seconds) : percentOf(r.sm_active);
  return `${name}: ${value}${r.score == null ? "" : `, ${percentOf(r.score)} slower`}`;
}

const RANK_STATES: Record<string, { tone: string; glyph: string; text?: string }> = {
  works: { tone: "ok", glyph: "✓", text: "working" },
  waits: { tone: "", glyph: "‖", text: "waiting" },
  slow: { tone: "warning", glyph: "▲" },
  idle: { tone: "warning", glyph: "○" },
  missing: { tone: "critical", glyph: "✕" },
  unknown: { tone: "", glyph: "·" },
};

export const rankColumns = (straggler: Straggler | null): Column<Rank>[] => [
  {
    id: "rank",
    title: "Rank",
    class: "short",
    value: (r) => r.rank,
    cell: (r) => (
      <>
        {r.rank ?? <span class="dim">unknown</span>}
        {straggler && straggler.uuid === r.uuid && <Chip tone="warning">▲ {stragglerKind(straggler)}</Chip>}
      </>
    ),
  },
  {
    id: "gpu",
    title: "GPU",
    class: "nowrap",
    value: (r) => `${r.node} ${r.gpu}`,
    cell: (r) => (
      <a href={to.gpu(r.uuid)}>
        {r.node} · GPU {r.gpu}
      </a>
    ),
  },
  {
    id: "state",
    title: "Activity",
    value: (r) => r.state,
    cell: (r) => <MarkedText {...RANK_STATES[r.state]}>{RANK_STATES[r.state]?.text ?? r.state}</MarkedText>,
  },
  {
    id: "sm",
    title: "SM active",
    numeric: true,
    class: "wide-only",
    value: (r) => r.sm_active,
    cell: (r) => percentOf(r.sm_active),
  },
  {
    id: "power",
    title: "Power",
    numeric: true,
    value: (r) => r.power_watts,
    cell: (r) => (r.power_watts == null ? "unknown" : `${count(r.power_watts)} W`),
    minor: true,
  },
  {
    id: "step",
    title: "Step",
    numeric: true,
    value: (r) => r.step_seconds,
    cell: (r) => (r.step_seconds === 0 ? "no step" : duration(r.step_seconds)),
  },
  {
    id: "score",
    title: "Slower",
    numeric: true,
    value: (r) => r.score,
    cell: (r) => (r.score == null ? "unknown" : r.score < 0.005 ? "–" : percent(100 * r.score)),
    hint: "how much slower than the other ranks",
  },
];
