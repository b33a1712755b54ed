// The one store that pages read: the last state from the hub, and the state of the connection.

import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import type { Frame } from "./live_types";
import type { Card, Fleet, Status } from "./types";

export interface State {
  status?: Status;
  fleet?: Fleet;
  frame?: Frame;
  open?: Card[];
  closed?: Card[];
  link: "connecting" | "live" | "lost";
  updatedAt?: string;
  signIn: boolean;
  colour: string;
  notice?: string;
  /** How often the hub came back: what could not be asked meanwhile is asked anew. */
  reconnects: number;
}
let state: State = { link: "connecting", signIn: false, colour: "sm_active", reconnects: 0 };
const listeners = new Set<() => void>();

export function setState(change: Partial<State>): void {
  state = { ...state, ...change };
  for (const redraw of listeners) redraw();
}
export const getState = (): State => state;
export function useHub(): State {
  const [, redraw] = useState(0);
  // Before the browser paints: a plain effect runs later, and what is set meanwhile would never be shown.
  useLayoutEffect(() => {
    const listener = () => redraw((n) => n + 1);
    listeners.add(listener);
    return () => {
      listeners.delete(listener);
    };
  }, []);
  return state;
}

/** `returns` alone: who only asks need not be drawn with every picture. */
export function useReconnects(): number {
  const [reconnects, setReconnects] = useState(state.reconnects);
  useLayoutEffect(() => {
    const listener = () => setReconnects(state.reconnects);
    listeners.add(listener);
    return () => {
      listeners.delete(listener);
    };
  }, []);
  return reconnects;
}

/** The hub's clock: a simulated fleet may run ahead of ours. */
export function now(): number {
  const at = state.frame?.at ?? state.status?.now;
  return at ? Date.parse(at) : Date.now();
}

/** A number that changes every so often while the page is looked at. */
export function usePulse(every = 15000): number {
  const [beat, setBeat] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => document.visibilityState === "visible" && setBeat((n) => n + 1), every);
    return () => clearInterval(timer);
  }, [every]);
  return beat;
}
