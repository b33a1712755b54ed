// The demand forecast as a chart, and when it exceeds the fleet or another fleet size.

import { useMemo } from "preact/hooks";
import { Chart } from "../../components/chart";
import { count, day } from "../../lib/format";
import type { Line } from "../../lib/lines";
import { put } from "../../lib/router";

interface Point {
  time: string;
  mean: number;
  low: number;
  high: number;
}

export interface Forecast {
  about: string;
  reason: string | null;
  capacity_gpus: number | null;
  sentence?: string;
  model: string;
  forecast: Point[];
  interval: number;
  step: string;
  notes: string[];
  backtest: { wape: number | null; naive_wape: number | null; coverage: number | null; origins: number };
  history: { from: string; to: string; steps: number; gaps: number; recent: { time: string; value: number | null }[] };
  full?: {
    is_full_now: boolean;
    full_at: string | null;
    earliest: string | null;
    latest: string | null;
    likely: number;
  };
  need?: { target: number; likely_gpus: number; sure_gpus: number };
}

const seconds = (at: string) => Date.parse(at) / 1000;

export function ForecastChart({
  made,
  capacity,
  add,
  theme,
}: {
  made: Forecast;
  capacity: number | null;
  add: number;
  theme: string;
}) {
  const { times, lines } = useMemo(() => {
    const past = made.history.recent;
    const times = [...past.map((p) => seconds(p.time)), ...made.forecast.map((p) => seconds(p.time))];
    const n = past.length;
    const all = <T,>(value: T) => times.map(() => value);
    const ahead = (pick: (p: Point) => number) => [
      ...past.map((p, i) => (i === n - 1 ? p.value : null)),
      ...made.forecast.map(pick),
    ];
    const lines: Line[] = [
      {
        label: "Demand",
        unit: "GPUs",
        tone: "dim",
        values: [...past.map((p) => p.value), ...made.forecast.map(() => null)],
      },
      {
        label: "Forecast",
        unit: "GPUs",
        tone: "accent",
        values: ahead((p) => p.mean),
        low: ahead((p) => Math.max(0, p.low)),
        high: ahead((p) => p.high),
      },
      ...(made.capacity_gpus != null
        ? [
            {
              label: "Capacity",
              unit: "GPUs",
              tone: "bad" as const,
              dashed: true,
              values: all(made.capacity_gpus as number | null),
            },
          ]
        : []),
      ...(capacity != null && add
        ? [
            {
              label: `What if ${add > 0 ? "+" : "−"}${Math.abs(add)}`,
              unit: "GPUs",
              tone: "warn" as const,
              dashed: true,
              values: all(capacity as number | null),
            },
          ]
        : []),
    ];
    return { times, lines };
  }, [made, capacity, add]);
  return (
    <Chart id="forecast-chart" name="GPU demand with forecast" times={times} lines={lines} theme={theme} height={280} />
  );
}

/** When the same forecast exceeds another fleet size. */
export function WhatIfLine({ made, capacity, add }: { made: Forecast; capacity: number | null; add: number }) {
  if (capacity == null) return null;
  const cross = (pick: (p: Point) => number) => made.forecast.find((p) => pick(p) >= capacity)?.time;
  const full = cross((p) => p.mean);
  const early = cross((p) => p.high);
  const late = cross((p) => p.low);
  return (
    <form class="whatif" onSubmit={(e) => e.preventDefault()} data-testid="whatif">
      <label>
        What if you add{" "}
        <input
          type="number"
          class="narrow number"
          value={String(add)}
          step={8}
          min={-(made.capacity_gpus ?? 0)}
          aria-label="GPUs to add; a negative number removes GPUs"
          data-testid="whatif-add"
          onInput={(e) => put("add", e.currentTarget.value === "0" ? null : e.currentTarget.value)}
        />{" "}
        GPUs
      </label>
      <span data-testid="whatif-answer">
        <b>
          {count(capacity)} GPUs:{" "}
          {capacity <= 0 ? "no GPUs left" : full ? `full on ${day(full).slice(0, 16)}` : "not full in this time range"}
        </b>
        {capacity > 0 && (
          <span class="dim">
            {" "}
            · {early ? `earliest ${day(early).slice(0, 16)}` : "not even at the upper bound"}
            {late ? `, latest ${day(late).slice(0, 16)}` : ""}
          </span>
        )}
      </span>
    </form>
  );
}
