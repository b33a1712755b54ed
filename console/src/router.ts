// Real paths and the history API: every view, filter and range is in the address.

import { useEffect, useState } from "preact/hooks";

const CHANGED = "watchkeeper:address";
export function go(to: string, replace = false): void {
  history[replace ? "replaceState" : "pushState"](null, "", to);
  dispatchEvent(new Event(CHANGED));
}
export function useAddress(): URL {
  const [address, look] = useState(() => new URL(location.href));
  useEffect(() => {
    const changed = () => look(new URL(location.href));
    addEventListener("popstate", changed);
    addEventListener(CHANGED, changed);
    return () => { removeEventListener("popstate", changed); removeEventListener(CHANGED, changed); };
  }, []);
  return address;
}
/** Set or drop one search parameter and stay on the page. */
export function put(name: string, value: string | null): void {
  const address = new URL(location.href);
  value ? address.searchParams.set(name, value) : address.searchParams.delete(name);
  go(address.pathname + address.search, true);
}
/** Links inside the console change the page without loading it anew; modified clicks stay the browser's. */
export function followLinks(): void {
  addEventListener("click", (event) => {
    const link = (event.target as Element).closest?.("a");
    if (!link || link.origin !== location.origin || link.target || link.hasAttribute("download")) return;
    if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(link.pathname + link.search);
    scrollTo(0, 0);
  });
}
