// Routing with paths and the history API: every view, filter, selection and range is in the URL.

import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";

/** The props of every page; `id` is the decoded rest of the path (`/gpu/GPU-1` → `GPU-1`), or empty. */
export interface PageProps {
  address: URL;
  theme: string;
  id: string;
}
/** A page of the console: one row of the table in main.tsx. Its code is loaded on the first visit. */
export interface PageRow {
  path: string;
  name: string;
  key: string;
  group: "monitor" | "analyse" | "practise";
  /** A shorter name for the navigation. */
  short?: string;
  load: () => Promise<ComponentType<PageProps>>;
  /** Shown only for a simulated fleet. */
  simulated?: boolean;
  /** Not in the navigation, only linked. */
  hidden?: boolean;
}

/** Decode a part of a path; an invalid escape such as `%zz` stays as typed. */
function decodePart(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
/** The page of a path, and the id of its object; the path of a page for one object ends with a slash. */
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
/** The URL of the same page with some parameters changed, for links. */
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

/** Time ranges of charts in milliseconds; the name is in the URL. */
export const RANGES: Record<string, number> = {
  "15m": 900e3,
  "1h": 3600e3,
  "6h": 21600e3,
  "24h": 86400e3,
  "7d": 604800e3,
};
export const rangeMs = (address: URL): number => RANGES[address.searchParams.get("range") ?? "1h"] ?? RANGES["1h"];

/** The paths of pages for one object. */
export const to = {
  gpu: (uuid: string) => `/gpu/${encodeURIComponent(uuid)}`,
  node: (name: string) => `/node/${encodeURIComponent(name)}`,
  incident: (id: string) => `/incidents/${encodeURIComponent(id)}`,
  job: (name: string) => `/jobs/${encodeURIComponent(name)}`,
  explore: (expr: string) => `/explore?expr=${encodeURIComponent(expr)}`,
  fleet: (q: string) => `/?q=${encodeURIComponent(q)}`,
};

/** Open links inside the console without a reload; clicks with a modifier key stay with the browser. */
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
