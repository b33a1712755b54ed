// Real paths and the history API: every view, filter, selection and range is in the address.

import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";

/**
 * What every page is given; `id` is the rest of its path, decoded (`/gpu/GPU-1` → `GPU-1`), and empty where there is
 * none.
 */
export interface PageProps {
  address: URL;
  theme: string;
  id: string;
}
/** A page of the console: one row of the table in main.tsx. Its code is loaded when someone goes there. */
export interface PageRow {
  path: string;
  name: string;
  key: string;
  group: "monitor" | "analyse" | "practise";
  /** A shorter name for the rail. */
  short?: string;
  load: () => Promise<ComponentType<PageProps>>;
  /** Only where the fleet is simulated. */
  simulated?: boolean;
  /** Reached by links, not by the rail. */
  hidden?: boolean;
}

/** `%zz` is not a valid escape; a user may have typed it. */
function decodePart(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
/** The page of a path, with the thing that it is about; a page of one thing has a slash at the end of its path. */
export function findPage<T extends { path: string }>(pages: T[], path: string): { row?: T; first: string; id: string } {
  const [, section, ...rest] = path.split("/");
  const id = rest.map(decodePart).join("/");
  const pageAt = (path: string) => pages.find((p) => p.path === path);
  return { row: id ? (pageAt(`/${section}/`) ?? pageAt(`/${section}`)) : pageAt(`/${section}`), first: section, id };
}

const CHANGED = "watchkeeper:address";
export function navigate(to: string, replace = false): void {
  history[replace ? "replaceState" : "pushState"](null, "", to);
  dispatchEvent(new Event(CHANGED));
}
export function useAddress(): URL {
  const [address, setAddress] = useState(() => new URL(location.href));
  useEffect(() => {
    const changed = () => setAddress(new URL(location.href));
    addEventListener("popstate", changed);
    addEventListener(CHANGED, changed);
    return () => {
      removeEventListener("popstate", changed);
      removeEventListener(CHANGED, changed);
    };
  }, []);
  return address;
}
/** Set or drop one search parameter and stay on the page. */
export const setParam = (name: string, value: string | null): void => setParams({ [name]: value });
export function setParams(changes: Record<string, string | null>): void {
  const address = new URL(location.href);
  applyChanges(address.searchParams, changes);
  navigate(address.pathname + address.search, true);
}
/** The same page with some parameters changed, for a link that can be opened elsewhere. */
export function withParams(address: URL, changes: Record<string, string | null>): string {
  const next = new URLSearchParams(address.search);
  applyChanges(next, changes);
  return address.pathname + (next.size ? `?${next}` : "");
}
function applyChanges(params: URLSearchParams, changes: Record<string, string | null>): void {
  for (const [name, value] of Object.entries(changes)) {
    if (value) params.set(name, value);
    else params.delete(name);
  }
}
export const param = (address: URL, name: string, fallback = ""): string => address.searchParams.get(name) ?? fallback;

/** Time ranges of pages with charts, in milliseconds; the name is in the address. */
export const RANGES: Record<string, number> = {
  "15m": 900e3,
  "1h": 3600e3,
  "6h": 21600e3,
  "24h": 86400e3,
  "7d": 604800e3,
};
export const rangeMs = (address: URL): number => RANGES[address.searchParams.get("range") ?? "1h"] ?? RANGES["1h"];

/** Addresses of things, so that no page spells another's. */
export const to = {
  gpu: (uuid: string) => `/gpu/${encodeURIComponent(uuid)}`,
  node: (name: string) => `/node/${encodeURIComponent(name)}`,
  incident: (id: string) => `/incidents/${encodeURIComponent(id)}`,
  job: (name: string) => `/jobs/${encodeURIComponent(name)}`,
  explore: (expr: string) => `/explore?expr=${encodeURIComponent(expr)}`,
  fleet: (q: string) => `/?q=${encodeURIComponent(q)}`,
};

/** Links inside the console change the page without loading it anew; modified clicks stay the browser's. */
export function handleLinks(isPage: (path: string) => boolean): void {
  addEventListener("click", (event) => {
    const link = (event.target as Element).closest?.("a");
    if (
      !link ||
      link.origin !== location.origin ||
      link.target ||
      link.hasAttribute("download") ||
      !isPage(link.pathname)
    )
      return;
    if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    const isOtherPage = link.pathname !== location.pathname;
    navigate(link.pathname + link.search);
    if (isOtherPage) scrollTo(0, 0);
  });
}
