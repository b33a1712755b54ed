// Queries of Explore: the time range in the address, the requests, and names of series.

import { useEffect, useState } from "preact/hooks";
import { RequestError } from "../../lib/api";
import { param } from "../../lib/router";
import { now, setState, useHub } from "../../lib/store";

export type Labels = Record<string, string>;

export interface Result {
  metric: Labels;
  values?: [number, string][];
  value?: [number, string];
}

interface Reply {
  data: { resultType: string; result: Result[] | [number, string]; stats?: { timings: { evalTotalTime: number } } };
  warnings?: string[];
  infos?: string[];
}

export interface QueryResult {
  expr: string;
  reply?: Reply;
  problem?: RequestError;
  millis: number;
  bytes: number;
}

export const SPANS: Record<string, number> = { "15m": 900, "1h": 3600, "6h": 21600, "1d": 86400, "7d": 604800 };

export const MAX_SERIES = 60;

const MAX_POINTS = 11000;

/** Read the time range and step from the URL, in seconds. */
export function readTime(address: URL): { start: number; end: number; step: number; range: string; fixed: boolean } {
  const from = Number(param(address, "from"));
  const until = Number(param(address, "to"));
  const fixed = from > 0 && until > from;
  const range = param(address, "range", "1h");
  const end = fixed ? until : Math.floor(now() / 5000) * 5;
  const start = fixed ? from : end - (SPANS[range] ?? 3600);
  const minStep = Math.ceil((end - start) / (MAX_POINTS - 1));
  const chosenStep = Number(param(address, "step"));
  return { start, end, step: Math.max(1, minStep, chosenStep || Math.ceil((end - start) / 240)), range, fixed };
}

export async function runQuery(path: string): Promise<{ reply: Reply; bytes: number }> {
  let answer: Response;
  try {
    answer = await fetch(path);
  } catch {
    throw new RequestError(0, "The hub does not answer");
  }
  const text = await answer.text();
  let content: Reply & { error?: string };
  try {
    content = JSON.parse(text);
  } catch {
    throw new RequestError(answer.status, `The hub returned HTTP ${answer.status}`);
  }
  if (answer.status === 401) setState({ signIn: true });
  if (!answer.ok) throw new RequestError(answer.status, content.error ?? `The hub returned HTTP ${answer.status}`);
  return { reply: content, bytes: text.length };
}

function pathOf(expr: string, view: string, time: { start: number; end: number; step: number }): string {
  const form = new URLSearchParams({ query: expr, limit: String(MAX_SERIES * 4), stats: "1" });
  const timeParams = view === "table" ? { time: time.end } : { start: time.start, end: time.end, step: time.step };
  for (const [name, value] of Object.entries(timeParams)) form.set(name, String(value));
  return `/api/v1/${view === "table" ? "query" : "query_range"}?${form}`;
}

export function useQueries(
  exprs: string[],
  view: string,
  time: { start: number; end: number; step: number },
  version: number,
): QueryResult[] | undefined {
  const [results, setResults] = useState<{ key: string; list: QueryResult[] }>();
  const ready = useHub().status !== undefined;
  const key = JSON.stringify([exprs, view === "table" ? "now" : "over", time.start, time.end, time.step]);
  useEffect(() => {
    let current = true;
    if (!ready) return;
    const runOne = async (expr: string): Promise<QueryResult> => {
      const began = performance.now();
      const path = pathOf(expr, view, time);
      try {
        const { reply, bytes } = await runQuery(path);
        return { expr, reply, bytes, millis: performance.now() - began };
      } catch (problem) {
        return { expr, problem: problem as RequestError, bytes: 0, millis: performance.now() - began };
      }
    };
    Promise.all(exprs.filter(Boolean).map(runOne)).then((list) => current && setResults({ key, list }));
    return () => {
      current = false;
    };
  }, [key, version, ready]);
  return results?.key === key ? results.list : undefined;
}

/** Whether the hub has cut a result at the limit of the request; then the number of series is not known. */
export const isTruncated = (results: QueryResult[]) =>
  results.some((r) => r.reply?.warnings?.some((w) => w.includes("truncated due to limit")));

export const isSeries = (reply?: Reply): reply is Reply & { data: { result: Result[] } } =>
  reply !== undefined && ["matrix", "vector"].includes(reply.data.resultType);

/** Sort series by name, so that a line keeps its colour; an engine may return any order. */
export const sortByName = <T extends { q: number; metric: Labels }>(rows: T[], name: (m: Labels) => string) =>
  rows
    .map((row) => [row, name(row.metric)] as const)
    .sort(([a, x], [b, y]) => a.q - b.q || x.localeCompare(y, "en", { numeric: true }))
    .map(([row]) => row);

/** The value of a result; of a range such as `up[5m]`, the newest sample. */
export const newestValue = (r: { value?: [number, string]; values?: [number, string][] }) =>
  Number((r.value ?? r.values?.at(-1))?.[1]);

export function formatValue(n: number): string {
  if (Number.isNaN(n)) return "NaN";
  return Number.isInteger(n) ? n.toLocaleString("en") : String(Number(n.toPrecision(6)));
}

/** The labels whose values differ between the series. */
export function labelNames(all: Labels[]): string[] {
  const names = [...new Set(all.flatMap((m) => Object.keys(m)))];
  const distinguishing = names.filter((n) => all.length === 1 || new Set(all.map((m) => m[n])).size > 1);
  const preferredOrder = ["__name__", "cluster", "Hostname", "node", "gpu", "namespace", "pod", "team"];
  return distinguishing
    .sort((a, b) => (preferredOrder.indexOf(a) + 1 || 99) - (preferredOrder.indexOf(b) + 1 || 99) || a.localeCompare(b))
    .slice(0, 12);
}

export function makeSeriesNamer(all: Labels[]): (m: Labels) => string {
  const names = labelNames(all).slice(0, 4);
  return (m) =>
    names
      .filter((n) => m[n])
      .map((n) => (n === "__name__" ? m[n] : names.length > 1 ? `${n} ${m[n]}` : m[n]))
      .join(" · ") ||
    m.__name__ ||
    "";
}
