// Requests to the API of the hub.

import { useEffect, useRef, useState } from "preact/hooks";
import { getState, now, setState, useReconnects } from "./store";

export class RequestError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}
export async function request<T>(path: string, method = "GET", body?: unknown): Promise<T> {
  const options =
    body === undefined ? {} : { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let answer: Response;
  try {
    answer = await fetch(path, { method, ...options });
  } catch {
    throw new RequestError(0, "The hub does not answer");
  }
  const content = await answer.json().catch(() => ({ error: `The hub returned HTTP ${answer.status}` }));
  if (answer.status === 401) setState({ signIn: true });
  if (!answer.ok) throw new RequestError(answer.status, content.error ?? `The hub returned HTTP ${answer.status}`);
  return content as T;
}

/**
 * Request a path and return the answer or the error. A new `version` repeats the request and keeps the old answer until
 * the new one arrives; an empty path requests nothing.
 */
export function useRequest<T>(
  path: string,
  version: unknown = 0,
): { answer?: T; problem?: RequestError; set: (answer: T) => void } {
  const [response, setResponse] = useState<{ path: string; answer?: T; problem?: RequestError }>({ path });
  const currentPath = useRef("");
  const sentCount = useRef(0);
  const usedNumber = useRef(0);
  currentPath.current = path;
  useEffect(
    () => () => {
      currentPath.current = "gone";
    },
    [],
  );
  const returns = useReconnects();
  useEffect(() => {
    const requestNumber = ++sentCount.current;
    // Drop an answer only if a later request was already answered.
    const apply = (update: (old: typeof response) => typeof response) => {
      if (currentPath.current === path && requestNumber > usedNumber.current) {
        usedNumber.current = requestNumber;
        setResponse(update);
      }
    };
    if (path)
      request<T>(path).then(
        (answer) => apply(() => ({ path, answer })),
        (problem) => apply((old) => ({ path, problem, answer: old.path === path ? old.answer : undefined })),
      );
  }, [path, version, returns]);
  const { answer, problem } = response.path === path ? response : { answer: undefined, problem: undefined };
  return { answer, problem, set: (value) => setResponse({ path, answer: value }) };
}

export type Points = Map<number, number>;
export interface Series {
  labels: Record<string, string>;
  points: Points;
}
/** Run a range query; times are in seconds. */
export async function queryRange(expr: string, start: number, end: number, step: number): Promise<Series[]> {
  const form = new URLSearchParams({ query: expr, start: String(start), end: String(end), step: String(step) });
  const answer = await request<{ data: { result: { metric: Record<string, string>; values: [number, string][] }[] } }>(
    `/api/v1/query_range?${form}`,
  );
  // An engine repeats the last sample for some minutes, also after now: drop those.
  const newest = Math.max(now(), Date.parse(getState().updatedAt ?? "0"));
  return answer.data.result.map(({ metric, values }) => ({
    labels: metric,
    points: new Map(
      values.filter(([at, text]) => at * 1000 <= newest && text !== "NaN").map(([at, text]) => [at, Number(text)]),
    ),
  }));
}
const STRIP = "strip";
/** Run several expressions, of one series each, in one request. */
export async function queryRanges(exprs: string[], start: number, end: number, step: number): Promise<Points[]> {
  const union = exprs.map((expr, i) => `label_replace(${expr}, "${STRIP}", "${i}", "", "")`).join(" or ");
  const series = exprs.length ? await queryRange(union, start, end, step) : [];
  return exprs.map(
    (_, i) => series.find((candidate) => Number(candidate.labels[STRIP] ?? 0) === i)?.points ?? new Map(),
  );
}
export async function acknowledge(id: string): Promise<void> {
  try {
    await request(`/api/incidents/${id}/acknowledge`, "POST", {});
    setState({ notice: `${id} acknowledged` });
  } catch (problem) {
    setState({ notice: (problem as Error).message });
  }
}
