// The field on top of every page: a node, GPU, workload, team, incident or a query.

import { useRef, useState } from "preact/hooks";
import { finder, LABELS, valuesOf } from "../lib/find";
import { many } from "../lib/format";
import { jobOf } from "../lib/promql";
import { go, put, to } from "../lib/router";
import { useHub } from "../lib/store";
import type { Card, Fleet } from "../lib/types";

interface Hit {
  to: string;
  label: string;
  hint: string;
}
const PLACEHOLDER = "Search nodes, GPUs, jobs, teams, incidents, or run PromQL";
const QUERY = /[({]|^(DCGM|dcgm|watchkeeper|node|slo:)_?\w*_/;

export function Search({ address }: { address: URL }) {
  const { fleet, open, closed } = useHub();
  const list = useRef<HTMLDivElement>(null);
  const here = address.pathname === "/" ? (address.searchParams.get("q") ?? "") : "";
  const [text, type] = useState(here);
  const [shown, show] = useState(false);
  const [seen, see] = useState(here);
  if (seen !== here) {
    see(here);
    type(here);
  }
  const asked = text.trim();
  const found = shown && asked.length > 1 ? hits(asked, fleet, [...(open ?? []), ...(closed ?? [])]) : [];
  const submit = (event: Event) => {
    event.preventDefault();
    show(false);
    (document.activeElement as HTMLElement)?.blur();
    const first = found[0];
    const straight =
      first && (found.length === 1 || first.to.startsWith("/incidents") || first.to.startsWith("/explore"));
    go(!asked ? "/" : straight ? first.to : to.fleet(asked));
  };
  const keys = (event: KeyboardEvent) => {
    const links = [...(list.current?.querySelectorAll("a") ?? [])];
    const at = links.indexOf(document.activeElement as HTMLAnchorElement);
    if (event.key === "Escape") {
      show(false);
      (document.activeElement as HTMLElement)?.blur();
    }
    const next = event.key === "ArrowDown" ? at + 1 : event.key === "ArrowUp" ? at - 1 : null;
    if (next === null) return;
    event.preventDefault();
    const field = next < 0 ? document.getElementById("search") : links[Math.min(next, links.length - 1)];
    field?.focus();
  };
  const left = (event: FocusEvent) => {
    if (!(event.currentTarget as Element).contains(event.relatedTarget as Node)) show(false);
  };
  return (
    <form class="search" role="search" onSubmit={submit} onKeyDown={keys} onFocusOut={left}>
      <input
        id="search"
        data-testid="search"
        value={text}
        autocomplete="off"
        placeholder={PLACEHOLDER}
        aria-label={PLACEHOLDER}
        onFocus={(e) => e.currentTarget.select()}
        onInput={(e) => {
          type(e.currentTarget.value);
          show(true);
          if (!e.currentTarget.value && here) put("q", null);
        }}
      />
      <kbd>/</kbd>
      {found.length > 0 && (
        <div class="found" data-testid="found" ref={list}>
          {found.map((f) => (
            <a key={f.to} href={f.to} onClick={() => show(false)}>
              {f.label}
              <small>{f.hint}</small>
            </a>
          ))}
        </div>
      )}
    </form>
  );
}

/** `team:re` offers the teams that begin so; what was typed before it stays. */
function offers(q: string, fleet: Fleet | undefined): Hit[] {
  const [, before, label, text] = /^(.*?)(\w+):(\S*)$/.exec(q) ?? [];
  if (!fleet || !label || !LABELS.includes(label as (typeof LABELS)[number])) return [];
  return [...valuesOf(label, fleet)]
    .filter(([value]) => value.toLowerCase().includes(text.toLowerCase()))
    .sort((a, b) => b[1] - a[1])
    .slice(0, 8)
    .map(([value, gpus]) => ({
      to: to.fleet(`${before}${label}:${value}`),
      label: `${label}:${value}`,
      hint: gpus ? many(gpus, "GPU") : "",
    }));
}

function hits(q: string, fleet: Fleet | undefined, cards: Card[]): Hit[] {
  if (QUERY.test(q)) return [{ to: to.explore(q), label: q, hint: "run query" }];
  const offered = offers(q, fleet);
  if (offered.length) return offered;
  const low = q.toLowerCase();
  const fits = finder(q, fleet);
  const incidents = cards
    .filter((c) => `${c.id} ${c.title} ${c.cause}`.toLowerCase().includes(low))
    .slice(0, 4)
    .map((c) => ({ to: to.incident(c.id), label: c.title, hint: c.id }));
  const nodes = (fleet?.nodes ?? [])
    .filter((n) => n.name.toLowerCase().includes(low))
    .slice(0, 4)
    .map((n) => ({ to: to.node(n.name), label: n.name, hint: `node${n.rack ? ` in ${n.rack}` : ""}` }));
  const gpus: Hit[] = [];
  for (const n of fleet?.nodes ?? [])
    for (const g of n.gpus)
      if (g && gpus.length < 5 && fits(n, g))
        gpus.push({
          to: to.gpu(g.uuid),
          label: `${n.name} · GPU ${g.index ?? "?"}`,
          hint: g.workload ?? g.model ?? "",
        });
  return [
    ...incidents,
    ...nodes,
    ...jobs(low, fleet),
    ...gpus,
    ...(/\bs?xid\b/i.test(q)
      ? [{ to: `/journal?q=${encodeURIComponent(q)}`, label: q, hint: "search the journal" }]
      : []),
  ];
}

/** The jobs whose workloads are called so; the pods of one job are one. */
function jobs(low: string, fleet: Fleet | undefined): Hit[] {
  const found = new Map<string, number>();
  for (const n of fleet?.nodes ?? [])
    for (const g of n.gpus)
      if (g?.workload?.toLowerCase().includes(low)) {
        const name = g.workload.replace(/[^/]*$/, jobOf);
        found.set(name, (found.get(name) ?? 0) + 1);
      }
  return [...found]
    .sort((a, b) => b[1] - a[1])
    .slice(0, 4)
    .map(([name, gpus]) => ({ to: to.job(name), label: name, hint: `job, ${many(gpus, "GPU")}` }));
}
