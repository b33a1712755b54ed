// The ranks of a job side by side; the straggler stands out by shape.

import { Chip, Mark } from "../../components/parts";
import type { Column } from "../../components/table";
import { duration } from "../../lib/durations";
import { count, percent, percentOf } from "../../lib/format";
import { to } from "../../lib/router";
import type { Rank, Straggler } from "./labels";

/**
 * One bar per rank: its step time, or its activity where the job tells of no steps; the straggler stands out by shape.
 */
export function Ranks({ ranks, straggler }: { ranks: Rank[]; straggler: Straggler | null }) {
  const steps = ranks.some((r) => r.step_seconds != null);
  const value = (r: Rank) => (steps ? r.step_seconds : r.sm_active);
  const known = ranks.filter((r) => value(r) != null);
  if (known.length < 2) return null;
  const most = Math.max(...known.map((r) => value(r)!));
  if (most === 0)
    return <p class="hint gap-below">{steps ? "No rank finished a step recently." : "No rank was active recently."}</p>;
  const shown = ranks.slice(0, 256);
  return (
    <figure
      class="ranks"
      aria-label={`${steps ? "Step time" : "SM activity"} of ${known.length} ranks`}
      data-testid="rank-bars"
    >
      <figcaption class="hint">
        {steps ? `step time, longest ${duration(most)}` : "SM active by rank, highest "}
        {!steps && percentOf(most)}
        {ranks.length > 256 && " · first 256 ranks"}
      </figcaption>
      <div>
        {shown.map((r, i) => {
          const marked = straggler && (straggler.uuid ? straggler.uuid === r.uuid : straggler.rank === r.rank);
          const v = value(r);
          return (
            <a
              key={`${r.rank} ${r.uuid}`}
              href={to.gpu(r.uuid)}
              class={marked ? "straggler" : r.state}
              title={tell(r, steps)}
              aria-label={`rank ${r.rank ?? i}`}
              tabIndex={-1}
            >
              {marked && <em aria-hidden="true">▲</em>}
              <i style={{ height: `${v == null ? 0 : Math.max(2, (100 * v) / most)}%` }} />
              {v == null && <b aria-hidden="true">–</b>}
            </a>
          );
        })}
      </div>
    </figure>
  );
}

function tell(r: Rank, bySteps: boolean): string {
  const name = `${r.rank == null ? `GPU ${r.gpu}` : `rank ${r.rank}`} on ${r.node}`;
  const value = bySteps ? duration(r.step_seconds) : percentOf(r.sm_active);
  return `${name}: ${value}${r.score == null ? "" : `, ${percentOf(r.score)} slower`}`;
}

const RANK: Record<string, { tone: string; glyph: string; text?: string }> = {
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
        {straggler && straggler.uuid === r.uuid && <Chip tone="warning">▲ straggler</Chip>}
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
    cell: (r) => <Mark {...RANK[r.state]}>{RANK[r.state]?.text ?? r.state}</Mark>,
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
