// The connection to the hub: requests, the live socket, and the one store that pages read.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Frame, News } from "./live";
import type { Card, Fleet, Status } from "./types";

export interface State {
  status?: Status; fleet?: Fleet; frame?: Frame; open?: Card[]; closed?: Card[];
  link: "connecting" | "live" | "lost"; heard?: string; signIn: boolean; colour: string; notice?: string;
  /** How often the hub came back: what could not be asked meanwhile is asked anew. */
  returns: number;
}
let state: State = { link: "connecting", signIn: false, colour: "sm_active", returns: 0 };
const listeners = new Set<() => void>();

export function set(change: Partial<State>): void {
  state = { ...state, ...change };
  listeners.forEach((tell) => tell());
}
export const get = (): State => state;
export function useHub(): State {
  const [, redraw] = useState(0);
  // Before the browser paints: a plain effect runs later, and what is set meanwhile would never be shown.
  useLayoutEffect(() => {
    const tell = () => redraw((n) => n + 1);
    listeners.add(tell);
    return () => { listeners.delete(tell); };
  }, []);
  return state;
}

/** `returns` alone: who only asks need not be drawn with every picture. */
export function useReturns(): number {
  const [seen, look] = useState(state.returns);
  useLayoutEffect(() => {
    const tell = () => look(state.returns);
    listeners.add(tell);
    return () => { listeners.delete(tell); };
  }, []);
  return seen;
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

/** What a page asked for once: the answer, or the problem in words. `again` asks anew and keeps the old answer meanwhile; an empty path asks nothing. */
export function useAsk<T>(path: string, again: unknown = 0): { answer?: T; problem?: Refused; set: (answer: T) => void } {
  const [found, keep] = useState<{ path: string; answer?: T; problem?: Refused }>({ path });
  const wanted = useRef(""), asked = useRef(0), came = useRef(0);
  wanted.current = path;
  useEffect(() => () => { wanted.current = "gone"; }, []);
  const returns = useReturns();
  useEffect(() => {
    const turn = ++asked.current;
    // An answer that was overtaken by the next question is still the newest one there is; only older ones are dropped.
    const use = (made: (old: typeof found) => typeof found) => { if (wanted.current === path && turn > came.current) { came.current = turn; keep(made); } };
    if (path) ask<T>(path).then(
      (answer) => use(() => ({ path, answer })),
      (problem) => use((old) => ({ path, problem, answer: old.path === path ? old.answer : undefined })),
    );
  }, [path, again, returns]);
  const { answer, problem } = found.path === path ? found : { answer: undefined, problem: undefined };
  return { answer, problem, set: (value) => keep({ path, answer: value }) };
}

/** The hub's clock: a simulated fleet may run ahead of ours. */
export function now(): number {
  const at = state.frame?.at ?? state.status?.now;
  return at ? Date.parse(at) : Date.now();
}

export type Points = Map<number, number>;
export interface Series { labels: Record<string, string>; points: Points }
/** All series of one expression over a time, in seconds. */
export async function range(expr: string, start: number, end: number, step: number): Promise<Series[]> {
  const form = new URLSearchParams({ query: expr, start: String(start), end: String(end), step: String(step) });
  const answer = await ask<{ data: { result: { metric: Record<string, string>; values: [number, string][] }[] } }>(`/api/v1/query_range?${form}`);
  // An engine repeats the last reading for some minutes; the time after now has none.
  const newest = Math.max(now(), Date.parse(state.heard ?? "0"));
  return answer.data.result.map(({ metric, values }) => ({
    labels: metric,
    points: new Map(values.filter(([at, text]) => at * 1000 <= newest && text !== "NaN").map(([at, text]) => [at, Number(text)])),
  }));
}
const STRIP = "strip";
/** Several expressions of one series each in one request: a page of twelve lines asks once. */
export async function ranges(exprs: string[], start: number, end: number, step: number): Promise<Points[]> {
  const union = exprs.map((expr, i) => `label_replace(${expr}, "${STRIP}", "${i}", "", "")`).join(" or ");
  const found = exprs.length ? await range(union, start, end, step) : [];
  return exprs.map((_, i) => found.find((one) => Number(one.labels[STRIP] ?? 0) === i)?.points ?? new Map());
}
/** The present value of each series of an expression. */
export async function instant(expr: string): Promise<{ labels: Record<string, string>; value: number }[]> {
  const form = new URLSearchParams({ query: expr, time: String(now() / 1000) });
  const answer = await ask<{ data: { result: { metric: Record<string, string>; value: [number, string] }[] } }>(`/api/v1/query?${form}`);
  return answer.data.result.map(({ metric, value }) => ({ labels: metric, value: Number(value[1]) }));
}

let socket: WebSocket | undefined;
let pause = 500;
const USUAL = "sm_active";
/** What the hub is asked to colour by; groups such as a team are coloured here, over the usual readings. */
export function chooseColour(colour: string): void {
  if (colour === state.colour) return;
  set({ colour });
  tell();
}
const tell = () => { if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ colour: state.colour, edition: state.fleet?.edition })); };

/** The answers and the live socket are asked for at the same time: the first picture waits for neither. */
export function connect(): void {
  ask<Status>("/api/status").then((status) => set({ status, heard: state.heard ?? status.now, signIn: false }), () => undefined);
  coming = undefined;
  refreshFleet();
  if (!state.frame && state.colour === USUAL) firstPicture();
  socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/api/live`);
  socket.binaryType = "arraybuffer";
  socket.onopen = () => { pause = 500; set({ link: "live", returns: state.returns + Number(state.link === "lost") }); tell(); };
  socket.onmessage = ({ data }) => (typeof data === "string" ? hear(JSON.parse(data)) : see(data as ArrayBuffer));
  socket.onclose = () => { if (!state.signIn) retry(); };
}
/** The picture that the hub has ready comes beside the other answers, while the socket is still being opened. */
async function firstPicture(): Promise<void> {
  try {
    const answer = await fetch("/api/picture");
    const picture = answer.status === 200 ? await answer.arrayBuffer() : null;
    if (picture && !state.frame) see(picture);
  } catch { /* The socket brings the next one. */ }
}
function retry(): void {
  set({ link: "lost" });
  setTimeout(connect, pause);
  pause = Math.min(pause * 1.7, 8000);
}
function hear(message: News | { kind: "incidents"; at: string; open: Card[]; closed: Card[] }): void {
  if (message.kind === "incidents") set({ open: message.open, closed: message.closed, heard: message.at });
  else if (message.kind === "fleet") follow(message);
}
/** The fleet of the picture that comes next, and the picture that came last: both are shown together. */
let coming: Fleet | undefined, latest: Frame | undefined;
function follow({ kind, since, ...news }: News): void {
  const here = coming ?? state.fleet;
  if (news.edition === here?.edition) return;
  if (!here || since !== here.edition) return refreshFleet();
  coming = { ...news, nodes: news.nodes.flatMap((part) => (Array.isArray(part) ? here.nodes.slice(part[0], part[1]) : [part])) };
}
function see(buffer: ArrayBuffer): void {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const values = new Float32Array(buffer, 4 + length, header.count);
  const states = new Uint8Array(buffer, 4 + length + 4 * header.count, header.count);
  const frame: Frame = { ...header, values, states }, fleet = coming ?? state.fleet, fits = frame.version === fleet?.version;
  const isHeld = !fits && state.frame && latest === state.frame && state.frame.version === state.fleet?.version;
  coming = undefined;
  latest = frame;
  // While the fleet of a picture is fetched the map stays as it was; if that takes until the next picture, it says unknown.
  set(isHeld ? { heard: frame.at } : { fleet, frame, heard: frame.at });
  if (!fits) refreshFleet();
}
// What the hub keeps ready may be a minute or two old, and comes at once; index.html asks for it before this code is here.
const READY = "/api/fleet?max_age=120&workloads=0";
let asking = false;
/** Fetch the whole fleet: at first, and where there is no news of what has changed since the one that is here. */
function refreshFleet(): void {
  if (asking) return;
  asking = true;
  ask<Fleet>(READY).then((fleet) => { coming = undefined; set({ fleet, frame: latest }); tell(); }, () => set({ frame: latest })).finally(() => { asking = false; });
}

/** What may change while the page is open: readiness, and whether the rule files could be read. */
export function refreshStatus(): void {
  if (state.link === "live") ask<Status>("/api/status").then((status) => set({ status }), () => undefined);
}

export async function acknowledge(id: string): Promise<void> {
  try { await ask(`/api/incidents/${id}/acknowledge`, "POST", {}); set({ notice: `${id} acknowledged` }); }
  catch (problem) { set({ notice: (problem as Error).message }); }
}
