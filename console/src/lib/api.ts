// Requests to the hub's API: an answer, or a problem in words.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, now, set, useReturns } from "./store";

export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}
export async function ask<T>(path: string, method = "GET", body?: unknown): Promise<T> {
  const sent =
    body === undefined ? {} : { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let answer: Response;
  try {
    answer = await fetch(path, { method, ...sent });
  } catch {
    throw new Refused(0, "The hub does not answer");
  }
  const content = await answer.json().catch(() => ({ error: `The hub returned HTTP ${answer.status}` }));
  if (answer.status === 401) set({ signIn: true });
  if (!answer.ok) throw new Refused(answer.status, content.error ?? `The hub returned HTTP ${answer.status}`);
  return content as T;
}

/**
 * What a page asked for once: the answer, or the problem in words. `again` asks anew and keeps the old answer
 * meanwhile; an empty path asks nothing.
 */
export function useAsk<T>(
  path: string,
  again: unknown = 0,
): { answer?: T; problem?: Refused; set: (answer: T) => void } {
  const [found, keep] = useState<{ path: string; answer?: T; problem?: Refused }>({ path });
  const wanted = useRef("");
  const asked = useRef(0);
  const came = useRef(0);
  wanted.current = path;
  useEffect(
    () => () => {
      wanted.current = "gone";
    },
    [],
  );
  const returns = useReturns();
  useEffect(() => {
    const turn = ++asked.current;
    // An answer that was overtaken by the next question is still the newest one there is; only older ones are dropped.
    const use = (made: (old: typeof found) => typeof found) => {
      if (wanted.current === path && turn > came.current) {
        came.current = turn;
        keep(made);
      }
    };
    if (path)
      ask<T>(path).then(
        (answer) => use(() => ({ path, answer })),
        (problem) => use((old) => ({ path, problem, answer: old.path === path ? old.answer : undefined })),
      );
  }, [path, again, returns]);
  const { answer, problem } = found.path === path ? found : { answer: undefined, problem: undefined };
  return { answer, problem, set: (value) => keep({ path, answer: value }) };
}

export type Points = Map<number, number>;
export interface Series {
  labels: Record<string, string>;
  points: Points;
}
/** All series of one expression over a time, in seconds. */
export async function range(expr: string, start: number, end: number, step: number): Promise<Series[]> {
  const form = new URLSearchParams({ query: expr, start: String(start), end: String(end), step: String(step) });
  const answer = await ask<{ data: { result: { metric: Record<string, string>; values: [number, string][] }[] } }>(
    `/api/v1/query_range?${form}`,
  );
  // An engine repeats the last reading for some minutes; the time after now has none.
  const newest = Math.max(now(), Date.parse(get().heard ?? "0"));
  return answer.data.result.map(({ metric, values }) => ({
    labels: metric,
    points: new Map(
      values.filter(([at, text]) => at * 1000 <= newest && text !== "NaN").map(([at, text]) => [at, Number(text)]),
    ),
  }));
}
const STRIP = "strip";
/** Several expressions of one series each in one request: a page of twelve lines asks once. */
export async function ranges(exprs: string[], start: number, end: number, step: number): Promise<Points[]> {
  const union = exprs.map((expr, i) => `label_replace(${expr}, "${STRIP}", "${i}", "", "")`).join(" or ");
  const found = exprs.length ? await range(union, start, end, step) : [];
  return exprs.map((_, i) => found.find((one) => Number(one.labels[STRIP] ?? 0) === i)?.points ?? new Map());
}
export async function acknowledge(id: string): Promise<void> {
  try {
    await ask(`/api/incidents/${id}/acknowledge`, "POST", {});
    set({ notice: `${id} acknowledged` });
  } catch (problem) {
    set({ notice: (problem as Error).message });
  }
}
