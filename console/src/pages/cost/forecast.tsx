// The demand forecast as a chart, and when it exceeds the fleet or another fleet size.

import { useMemo } from "preact/hooks";
import { Chart } from "../../components/chart";
import { count, dateTime } from "../../lib/format";
import type { Line } from "../../lib/lines";
import { setParam } from "../../lib/router";

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
  sentence?: string | null;
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
  } | null;
  need?: { target: number; likely_gpus: number; sure_gpus: number } | null;
}

const seconds = (at: string) => Date.parse(at) / 1000;

export function ForecastChart({
  forecast,
  capacity,
  add,
  theme,
}: {
  forecast: Forecast;
  capacity: number | null;
  add: number;
  theme: string;
}) {
  const { times, lines } = useMemo(() => {
    const past = forecast.history.recent;
    const times = [...past.map((p) => seconds(p.time)), ...forecast.forecast.map((p) => seconds(p.time))];
    const n = past.length;
    const repeated = <T,>(value: T) => times.map(() => value);
    const afterNow = (pick: (p: Point) => number) => [
      ...past.map((p, i) => (i === n - 1 ? p.value : null)),
      ...forecast.forecast.map(pick),
    ];
    const lines: Line[] = [
      {
        label: "Demand",
        unit: "GPUs",
        tone: "dim",
        values: [...past.map((p) => p.value), ...forecast.forecast.map(() => null)],
      },
      {
        label: "Forecast",
        unit: "GPUs",
        tone: "accent",
        values: afterNow((p) => p.mean),
        low: afterNow((p) => Math.max(0, p.low)),
        high: afterNow((p) => p.high),
      },
      ...(forecast.capacity_gpus != null
        ? [
            {
              label: "Capacity",
              unit: "GPUs",
              tone: "bad" as const,
              dashed: true,
              values: repeated(forecast.capacity_gpus as number | null),
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
              values: repeated(capacity as number | null),
            },
          ]
        : []),
    ];
    return { times, lines };
  }, [forecast, capacity, add]);
  return (
    <Chart id="forecast-chart" name="GPU demand with forecast" times={times} lines={lines} theme={theme} height={280} />
  );
}

/** When the same forecast exceeds another fleet size. */
export function WhatIfLine({ forecast, capacity, add }: { forecast: Forecast; capacity: number | null; add: number }) {
  if (capacity == null) return null;
  const firstTimeAbove = (pick: (p: Point) => number) => forecast.forecast.find((p) => pick(p) >= capacity)?.time;
  const full = firstTimeAbove((p) => p.mean);
  const early = firstTimeAbove((p) => p.high);
  const late = firstTimeAbove((p) => p.low);
  return (
    <form class="whatif" onSubmit={(e) => e.preventDefault()} data-testid="whatif">
      <label>
        What if you add{" "}
        <input
          type="number"
          class="narrow number"
          value={String(add)}
          step={8}
          min={-(forecast.capacity_gpus ?? 0)}
          aria-label="GPUs to add; a negative number removes GPUs"
          data-testid="whatif-add"
          onInput={(e) => setParam("add", e.currentTarget.value === "0" ? null : e.currentTarget.value)}
        />{" "}
        GPUs
      </label>
      <span data-testid="whatif-answer">
        <b>
          {count(capacity)} GPUs:{" "}
          {capacity <= 0
            ? "no GPUs left"
            : full
              ? `full on ${dateTime(full).slice(0, 16)}`
              : "not full in this time range"}
        </b>
        {capacity > 0 && (
          <span class="dim">
            {" "}
            · {early ? `earliest ${dateTime(early).slice(0, 16)}` : "not even at the upper bound"}
            {late ? `, latest ${dateTime(late).slice(0, 16)}` : ""}
          </span>
        )}
      </span>
    </form>
  );
}
