// Scales and axis labels of charts, for plot.ts.

import { dateTime, timeOfDay } from "./format";

const DAYS_SECONDS = 129600;
const EDGE_PX = 26;

/** The label of a time at pixel `x` of `width`; empty if the edge would cut it off. */
export function timeLabel(
  at: number,
  x: number,
  width: number,
  { start, end }: { start: number; end: number },
): string {
  if (x < EDGE_PX || x > width - EDGE_PX) return "";
  // Ranges of several days have dates.
  if (end - start > DAYS_SECONDS) return dateTime(new Date(at * 1000).toISOString()).slice(5, 10);
  return timeOfDay(at * 1000).slice(0, at % 60 ? 8 : 5);
}

/** A scale on which [low, high] fills band `i` of `n`, with a margin above and below. */
export function bandScale(low: number | null, high: number | null, i: number, n: number): [number, number] {
  let from = Math.min(0, low ?? 0);
  let to = high ?? 1;
  if (low != null && high != null && low > 0 && (high - low) / high < 0.5 && low / high > 0.5)
    from = low - (high - low || high) * 0.4;
  if (to <= from) to = from + 1;
  const span = (to - from) / 0.72;
  const bottom = from - span * 0.14;
  return [bottom - (n - 1 - i) * span, bottom + (i + 1) * span];
}

/** One scale for all lines; it starts at zero unless all values are far above zero. */
export function sharedScale(low: number | null, high: number | null): [number, number] {
  const from = Math.min(0, low ?? 0);
  const to = Math.max(high ?? 1, from + 1e-9);
  if (low == null || low <= 0.6 * to) return [from * 1.08, to > 0 ? to * 1.08 : -from * 0.08];
  const span = to - low || to;
  return [low - span * 0.3, to + span * 0.15];
}
