// The store that pages read: the latest state of the hub, and the state of the connection.

import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import type { Frame } from "./live_types";
import type { Card, Fleet, Status } from "./types";

export interface State {
  status?: Status;
  fleet?: Fleet;
  frame?: Frame;
  open?: Card[];
  closed?: Card[];
  /** The number of open incidents, of which `open` has the most severe. */
  openTotal?: { incidents: number; hasMore: boolean };
  link: "connecting" | "live" | "lost";
  updatedAt?: string;
  signIn: boolean;
  colour: string;
  notice?: string;
  /** Number of reconnects; failed requests are repeated after each. */
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
  // Subscribe before the browser paints: with a plain effect, changes in between would be lost.
  useLayoutEffect(() => {
    const listener = () => redraw((n) => n + 1);
    listeners.add(listener);
    return () => {
      listeners.delete(listener);
    };
  }, []);
  return state;
}

/** Only `reconnects`, so that a caller does not redraw at every frame. */
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

/** The time of the hub; a simulated fleet may run ahead of the browser's clock. */
export function now(): number {
  const at = state.frame?.at ?? state.status?.now;
  return at ? Date.parse(at) : Date.now();
}

/** A number that increases at an interval while the page is visible. */
export function usePulse(every = 15000): number {
  const [beat, setBeat] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => document.visibilityState === "visible" && setBeat((n) => n + 1), every);
    return () => clearInterval(timer);
  }, [every]);
  return beat;
}
