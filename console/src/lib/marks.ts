// Marks in charts: events, alerts, repairs, and when an incident opened and resolved.

import { shortDuration } from "./format";
import type { Mark } from "./lines";
import type { Card, Member, Place, Severity } from "./types";

export const severityTone = (severity: string) =>
  ({ critical: "bad", warning: "warn", info: "accent" })[severity] ?? "dim";
const shorten = (text: string) => (text.length > 34 ? `${text.slice(0, 33)}…` : text);
/** Repairs with their receipts; actions are marked in the same charts as their causes. */
export interface RepairRow {
  id: string;
  incident: string;
  node: Place;
  cause: string;
  state: string;
  receipts: { at: string; result: string; action: { kind: string } }[];
}
export const repairMarks = (repairs: RepairRow[], node: string): Mark[] =>
  repairs
    .filter((r) => r.node.node === node)
    .flatMap((r) =>
      r.receipts
        .filter((receipt) => receipt.result !== "described")
        .map((receipt) => ({
          at: receipt.at,
          label: `${receipt.action.kind.replace(/_/g, " ")}${receipt.result === "done" ? "" : ` ${receipt.result}`}`,
          tone: receipt.result === "failed" ? "warn" : "accent",
        })),
    );
export interface HistoryEvent {
  id: string;
  at: string;
  kind: string;
  code: number | null;
  text: string;
  gpu: string | null;
  process: string | null;
  meaning: string | null;
  severity: Severity;
}
export interface History {
  events: HistoryEvent[];
  total: number;
  days: number;
  since: string;
  now: string;
  counts: { kind: string; code: number | null; events: number; newest: string; meaning: string | null }[];
}
/** `in 90 days`, or since when the hub has events at all. */
export function historyLength({ days, since, now }: History): string {
  const length = Date.parse(now) - Date.parse(since);
  return length > (days - 1) * 86_400_000
    ? `in ${days} days`
    : `in ${shortDuration(length)}, all that this hub has seen`;
}

export function eventMarks(events: HistoryEvent[]): Mark[] {
  const keys = new Set<string>();
  return events
    .map((e) => ({
      at: e.at,
      label:
        e.code != null && e.kind.endsWith("xid")
          ? `${e.kind === "xid" ? "Xid" : "SXid"} ${e.code}`
          : e.kind.replace(/_/g, " "),
      tone: severityTone(e.severity),
    }))
    .filter((m) => {
      const key = `${m.label} ${m.at.slice(0, 16)}`;
      return !keys.has(key) && keys.add(key);
    })
    .slice(0, 40);
}
export const cardMarks = (cards: Card[]): Mark[] =>
  cards.flatMap((c) => [
    { at: c.opened_at, label: shorten(c.title), tone: severityTone(c.severity) },
    ...(c.resolved_at ? [{ at: c.resolved_at, label: `${c.id} resolved`, tone: "ok" }] : []),
  ]);
export function memberMarks(members: Member[]): Mark[] {
  const texts = new Set<string>();
  return members
    .filter((m) => !texts.has(m.text) && texts.add(m.text))
    .slice(0, 6)
    .map((m) => ({ at: m.since, label: markLabel(m), tone: severityTone(m.severity) }));
}
/** A short label of a signal: "Xid 79" instead of the kernel log line. */
function markLabel(member: Member): string {
  const xid = /Xid (?:\([^)]*\): )?(\d+)/.exec(member.text);
  if (member.kind === "event")
    return xid ? `Xid ${xid[1]}` : shorten(member.text.replace(/^NVRM: (GPU [0-9a-f:.]+: )?/i, ""));
  return shorten(/alertname="([^"]+)"/.exec(member.ref)?.[1] ?? member.text);
}
