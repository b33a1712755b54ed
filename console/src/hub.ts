// The connection to the hub: requests, the live socket, and the one store that pages read.

import { useEffect, useState } from "preact/hooks";
import type { Card, Fleet, Frame, Status } from "./types";

export interface State {
  status?: Status; fleet?: Fleet; frame?: Frame; open?: Card[]; closed?: Card[];
  link: "connecting" | "live" | "lost"; heard?: string; signIn: boolean; colour: string; notice?: string;
}
let state: State = { link: "connecting", signIn: false, colour: "sm_active" };
const listeners = new Set<() => void>();

export function set(change: Partial<State>): void {
  state = { ...state, ...change };
  listeners.forEach((tell) => tell());
}
export const get = (): State => state;
export function useHub(): State {
  const [, redraw] = useState(0);
  useEffect(() => {
    const tell = () => redraw((n) => n + 1);
    listeners.add(tell);
    return () => { listeners.delete(tell); };
  }, []);
  return state;
}

export class Refused extends Error {
  constructor(readonly status: number, message: string) { super(message); }
}
export async function ask<T>(path: string, method = "GET", body?: unknown): Promise<T> {
  const sent = body === undefined ? {} : { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let answer: Response;
  try { answer = await fetch(path, { method, ...sent }); }
  catch { throw new Refused(0, "the hub does not answer"); }
  const content = await answer.json().catch(() => ({ error: `the hub answered ${answer.status}` }));
  if (answer.status === 401) set({ signIn: true });
  if (!answer.ok) throw new Refused(answer.status, content.error ?? `the hub answered ${answer.status}`);
  return content as T;
}

/** What a page asked for once: the answer, or the problem in words. `again` asks anew and keeps the old answer meanwhile. */
export function useAsk<T>(path: string, again: unknown = 0): { answer?: T; problem?: Refused; set: (answer: T) => void } {
  const [found, keep] = useState<{ path: string; answer?: T; problem?: Refused }>({ path });
  useEffect(() => {
    let current = true;
    ask<T>(path).then(
      (answer) => current && keep({ path, answer }),
      (problem) => current && keep((old) => ({ path, problem, answer: old.path === path ? old.answer : undefined })),
    );
    return () => { current = false; };
  }, [path, again]);
  const { answer, problem } = found.path === path ? found : { answer: undefined, problem: undefined };
  return { answer, problem, set: (value) => keep({ path, answer: value }) };
}

/** The hub's clock: a simulated fleet may run ahead of ours. */
export function now(): number {
  const at = state.frame?.at ?? state.status?.now;
  return at ? Date.parse(at) : Date.now();
}

export type Points = Map<number, number>;
/** One expression over a time; several series of one answer are not expected here, the first is taken. */
export async function range(expr: string, start: number, end: number, step: number): Promise<Points> {
  const form = new URLSearchParams({ query: expr, start: String(start), end: String(end), step: String(step) });
  const answer = await ask<{ data: { result: { values: [number, string][] }[] } }>(`/api/v1/query_range?${form}`);
  // An engine repeats the last reading for some minutes; the time after now has none.
  const seen = (answer.data.result[0]?.values ?? []).filter(([at]) => at * 1000 <= Math.max(now(), Date.parse(state.heard ?? "0")));
  return new Map(seen.map(([at, text]) => [at, Number(text)]));
}

let socket: WebSocket | undefined;
let pause = 500;
export function chooseColour(colour: string): void {
  set({ colour });
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ colour }));
}

export async function connect(): Promise<void> {
  try {
    const [status, fleet] = await Promise.all([ask<Status>("/api/status"), ask<Fleet>("/api/fleet")]);
    set({ status, fleet, heard: state.heard ?? status.now, signIn: false });
  } catch (problem) {
    if (!state.signIn) retry();
    return void problem;
  }
  socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/api/live`);
  socket.binaryType = "arraybuffer";
  socket.onopen = () => { pause = 500; set({ link: "live" }); chooseColour(state.colour); };
  socket.onmessage = ({ data }) => (typeof data === "string" ? hear(JSON.parse(data)) : see(data as ArrayBuffer));
  socket.onclose = retry;
}
function retry(): void {
  set({ link: "lost" });
  setTimeout(connect, pause);
  pause = Math.min(pause * 1.7, 8000);
}
function hear(message: { kind: string; at: string; open: Card[]; closed: Card[] }): void {
  if (message.kind === "incidents") set({ open: message.open, closed: message.closed, heard: message.at });
}
function see(buffer: ArrayBuffer): void {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const values = new Float32Array(buffer, 4 + length, header.count);
  const states = new Uint8Array(buffer, 4 + length + 4 * header.count, header.count);
  set({ frame: { ...header, values, states }, heard: header.at });
  if (header.version !== state.fleet?.version) refreshFleet();
}
let asking = false;
export function refreshFleet(): void {
  if (asking) return;
  asking = true;
  ask<Fleet>("/api/fleet").then((fleet) => set({ fleet }), () => undefined).finally(() => { asking = false; });
}

/** What may change while the page is open: readiness, and whether the rule files could be read. */
export function refreshStatus(): void {
  if (state.link === "live") ask<Status>("/api/status").then((status) => set({ status }), () => undefined);
}

export async function acknowledge(id: string): Promise<void> {
  try { await ask(`/api/incidents/${id}/acknowledge`, "POST", {}); set({ notice: `${id} acknowledged` }); }
  catch (problem) { set({ notice: (problem as Error).message }); }
}
