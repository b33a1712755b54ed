// Types for charts: lines over time, strips, and marks of events.

/** `c1` to `c6` distinguish series; the other tones have a meaning. */
export type Tone = "accent" | "ok" | "warn" | "bad" | "dim" | "c1" | "c2" | "c3" | "c4" | "c5" | "c6";
export const TONES: Tone[] = ["c1", "c2", "c3", "c4", "c5", "c6"];
type Values = (number | null)[];
/** One line; `low` and `high` are its interval, `group` is a heading above the first line of a group. */
export interface Line {
  label: string;
  unit: string;
  values: Values;
  tone?: Tone;
  low?: Values;
  high?: Values;
  dashed?: boolean;
  group?: string;
}
export interface Mark {
  at: string;
  label: string;
  tone: string;
}
/** A line and its query; `group` is a heading above the first line of a group. */
export interface Strip {
  label: string;
  unit: string;
  expr: string;
  tone?: Tone;
  group?: string;
}
