// Types for charts: lines over time, strips, and marks of events.

/** `c1` to `c6` are for many series of one kind; the others have a meaning. */
export type Tone = "accent" | "ok" | "warn" | "bad" | "dim" | "c1" | "c2" | "c3" | "c4" | "c5" | "c6";
export const TONES: Tone[] = ["c1", "c2", "c3", "c4", "c5", "c6"];
type Values = (number | null)[];
/** One line; `low` and `high` are an interval around it, `group` a heading above the first of several. */
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
/** A line that the hub is asked for; `group` is a heading above the first of several. */
export interface Strip {
  label: string;
  unit: string;
  expr: string;
  tone?: Tone;
  group?: string;
}
