// Durations, for people and for PromQL.

import { shortDuration } from "./format";

const UNITS: Record<string, number> = { s: 1e3, m: 6e4, h: 36e5, d: 864e5, w: 6048e5, y: 31536e6 };

/** A duration from milliseconds to days, with three digits at most. */
export function duration(seconds: number | null): string {
  if (seconds == null) return "unknown";
  if (seconds < 1) return `${(1000 * seconds).toFixed(0)} ms`;
  return seconds < 90 ? `${Number(seconds.toPrecision(3))} s` : shortDuration(seconds * 1000);
}

/** A duration in the largest unit that gives a whole number: 300 → `5 min`. */
export function wholeUnits(seconds: number): string {
  if (seconds === 0) return "0 s";
  if (seconds % 3600 === 0) return `${seconds / 3600} h`;
  return seconds % 60 === 0 ? `${seconds / 60} min` : `${seconds} s`;
}

/** 90 → `90s`, 300 → `5m`. */
export const promqlDuration = (seconds: number): string => (seconds % 60 === 0 ? `${seconds / 60}m` : `${seconds}s`);

/** `28d`, `1h30m` → milliseconds. */
export const milliseconds = (text: string): number =>
  [...text.matchAll(/(\d+)([smhdwy])/g)].reduce((sum, [, n, unit]) => sum + Number(n) * UNITS[unit], 0);
