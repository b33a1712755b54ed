// The tables of a bill: cost by owner, and GPUs that are allocated and idle.

import { MarkedText, Panel } from "../../components/parts";
import { type Column, Table } from "../../components/table";
import { to } from "../../lib/router";
import {
  type Bill,
  formatCost,
  formatHours,
  type Hours,
  type Line,
  measuredHours,
  usedShare,
  type Waste,
} from "./labels";

export function IdlePanel({
  waste,
  currency,
  problem,
  hours: totals,
}: {
  waste?: Waste[];
  currency: string;
  hours: Hours;
  problem?: Parameters<typeof Table>[0]["problem"];
}) {
  return (
    <Panel title="Allocated, idle" hint="most expensive first · SM activity below 5 % for 15 minutes" id="idle-panel">
      <Table
        id="idle"
        caption="Holders of idle GPUs"
        rows={waste}
        problem={problem}
        rowKey={(w) => `${w.team} ${w.user} ${w.job}`}
        rowTestId="idle-row"
        maxRows={8}
        href={(w) => to.job(w.job)}
        columns={[
          {
            id: "job",
            title: "Allocated to",
            value: (w) => w.job,
            cell: (w) => (
              <>
                <a href={to.job(w.job)}>{w.job}</a>
                <small class="plain">
                  {[w.user !== "unmapped" && w.user, w.team !== "unmapped" && `team ${w.team}`]
                    .filter(Boolean)
                    .join(" · ") || "owner unknown"}
                </small>
              </>
            ),
          },
          {
            id: "hours",
            title: "GPU-hours",
            numeric: true,
            value: (w) => w.gpu_hours,
            cell: (w) => formatHours(w.gpu_hours),
          },
          {
            id: "money",
            title: "Cost",
            numeric: true,
            value: (w) => w.money,
            cell: (w) => formatCost(w.money, currency),
          },
        ]}
        empty={
          <p class="dim">
            {!totals.total ? (
              <MarkedText>Unknown: nothing was recorded in this time range.</MarkedText>
            ) : totals.allocated && measuredHours(totals) < 0.005 ? (
              <MarkedText>Unknown: the allocated GPUs were not measured in this time range.</MarkedText>
            ) : (
              <MarkedText tone="ok">No GPU was allocated and idle in this time range.</MarkedText>
            )}
          </p>
        }
      />
    </Panel>
  );
}

export function columns(by: string, bill: Bill, drill: (l: Line) => string | undefined): Column<Line>[] {
  const highestCost = Math.max(...bill.lines.map((l) => l.money ?? 0), 1e-9);
  const exact = (n: number | null) => (n == null ? null : Number(n.toFixed(4)));
  return [
    {
      id: by,
      title: by.replace(/^./, (c) => c.toUpperCase()),
      value: (l) => String(l[by]),
      cell: (l) => {
        const to = drill(l);
        const name = String(l[by]);
        return (
          <>
            {to ? (
              <a href={to}>{name}</a>
            ) : name === "(nobody)" ? (
              "not allocated"
            ) : by === "job" ? (
              <a href={`/jobs/${encodeURIComponent(name)}`}>{name}</a>
            ) : (
              name
            )}
            {name === "unmapped" && <small class="plain">owner unknown</small>}
          </>
        );
      },
    },
    {
      id: "money",
      title: "Cost",
      numeric: true,
      value: (l) => exact(l.money),
      cell: (l) => (
        <span
          class="cashbar"
          title={
            l.unpriced_hours > 0.05
              ? `${formatHours(l.unpriced_hours)} GPU-hours have no price and are not included`
              : undefined
          }
        >
          {l.money == null ? (
            <span class="dim">no price</span>
          ) : (
            <>
              {formatCost(l.money, bill.currency)}
              {l.unpriced_hours > 0.05 && " + unpriced"}
            </>
          )}
          <em aria-hidden="true">
            <i style={{ width: `${(100 * Math.max(0, l.money ?? 0)) / highestCost}%` }} />
          </em>
        </span>
      ),
      class: "wide",
    },
    {
      id: "wasted",
      title: "Allocated, idle",
      numeric: true,
      value: (l) => (l.hours.wasted ? exact(l.wasted_money) : 0),
      cell: (l) => (l.hours.wasted > 0 ? formatCost(l.wasted_money, bill.currency) : <span class="dim">–</span>),
      hint: bill.words.wasted,
    },
    {
      id: "allocated",
      title: "GPU-hours",
      numeric: true,
      value: (l) => l.hours.total,
      cell: (l) => formatHours(l.hours.total),
      hint: bill.words.total,
    },
    {
      id: "used",
      title: "Used",
      numeric: true,
      value: (l) => l.hours.used / measuredHours(l.hours) || null,
      cell: (l) => usedShare(l.hours) ?? <span class="dim">{l.hours.allocated ? "not measured" : "–"}</span>,
      hint: bill.words.used,
    },
    {
      id: "kwh",
      title: "kWh",
      numeric: true,
      minor: true,
      value: (l) => l.hours.kwh || null,
      cell: (l) => (l.hours.kwh ? formatHours(l.hours.kwh) : <span class="dim">–</span>),
      hint: "energy of the GPUs; – if not measured",
    },
    ...(bill.policy === "none"
      ? []
      : [
          {
            id: "shared",
            title: "Shared",
            numeric: true,
            value: (l: Line) => l.shared,
            cell: (l: Line) => formatCost(l.shared, bill.currency),
            hint: "share of the cost of GPU-hours that were not allocated",
          },
        ]),
  ];
}
