// The search field on every page: nodes, GPUs, workloads, teams, incidents and queries.

import { useRef, useState } from "preact/hooks";
import { plural } from "../lib/format";
import { countLabelValues, LABELS, parseFilter } from "../lib/gpu_filter";
import { jobName } from "../lib/promql";
import { navigate, setParam, to } from "../lib/router";
import { useHub } from "../lib/store";
import type { Card, Fleet } from "../lib/types";

interface Suggestion {
  to: string;
  label: string;
  hint: string;
}
const PLACEHOLDER = "Search nodes, GPUs, jobs, teams, incidents, or run PromQL";
const QUERY = /[({]|^(DCGM|dcgm|watchkeeper|node|slo:)_?\w*_/;

export function Search({ address }: { address: URL }) {
  const { fleet, open, closed } = useHub();
  const list = useRef<HTMLDivElement>(null);
  const addressQuery = address.pathname === "/" ? (address.searchParams.get("q") ?? "") : "";
  const [text, setText] = useState(addressQuery);
  const [isOpen, setOpen] = useState(false);
  const [lastAddressQuery, setLastAddressQuery] = useState(addressQuery);
  if (lastAddressQuery !== addressQuery) {
    setLastAddressQuery(addressQuery);
    setText(addressQuery);
  }
  const query = text.trim();
  const suggestions = isOpen && query.length > 1 ? suggest(query, fleet, [...(open ?? []), ...(closed ?? [])]) : [];
  const submit = (event: Event) => {
    event.preventDefault();
    setOpen(false);
    (document.activeElement as HTMLElement)?.blur();
    const first = suggestions[0];
    const opensFirst =
      first && (suggestions.length === 1 || first.to.startsWith("/incidents") || first.to.startsWith("/explore"));
    navigate(!query ? "/" : opensFirst ? first.to : to.fleet(query));
  };
  const moveWithKeys = (event: KeyboardEvent) => {
    const links = [...(list.current?.querySelectorAll("a") ?? [])];
    const index = links.indexOf(document.activeElement as HTMLAnchorElement);
    if (event.key === "Escape") {
      setOpen(false);
      (document.activeElement as HTMLElement)?.blur();
    }
    const next = event.key === "ArrowDown" ? index + 1 : event.key === "ArrowUp" ? index - 1 : null;
    if (next === null) return;
    event.preventDefault();
    const field = next < 0 ? document.getElementById("search") : links[Math.min(next, links.length - 1)];
    field?.focus();
  };
  const closeOnLeave = (event: FocusEvent) => {
    if (!(event.currentTarget as Element).contains(event.relatedTarget as Node)) setOpen(false);
  };
  return (
    <form class="search" role="search" onSubmit={submit} onKeyDown={moveWithKeys} onFocusOut={closeOnLeave}>
      <input
        id="search"
        data-testid="search"
        value={text}
        autocomplete="off"
        placeholder={PLACEHOLDER}
        aria-label={PLACEHOLDER}
        onFocus={(e) => e.currentTarget.select()}
        onInput={(e) => {
          setText(e.currentTarget.value);
          setOpen(true);
          if (!e.currentTarget.value && addressQuery) setParam("q", null);
        }}
      />
      <kbd>/</kbd>
      {suggestions.length > 0 && (
        <div class="found" data-testid="found" ref={list}>
          {suggestions.map((f) => (
            <a key={f.to} href={f.to} onClick={() => setOpen(false)}>
              {f.label}
              <small>{f.hint}</small>
            </a>
          ))}
        </div>
      )}
    </form>
  );
}

/** Suggest values for `team:re`; the text before it stays. */
function suggestLabelValues(q: string, fleet: Fleet | undefined): Suggestion[] {
  const [, before, label, text] = /^(.*?)(\w+):(\S*)$/.exec(q) ?? [];
  if (!fleet || !label || !LABELS.includes(label as (typeof LABELS)[number])) return [];
  return [...countLabelValues(label, fleet)]
    .filter(([value]) => value.toLowerCase().includes(text.toLowerCase()))
    .sort((a, b) => b[1] - a[1])
    .slice(0, 8)
    .map(([value, gpus]) => ({
      to: to.fleet(`${before}${label}:${value}`),
      label: `${label}:${value}`,
      hint: gpus ? plural(gpus, "GPU") : "",
    }));
}

function suggest(q: string, fleet: Fleet | undefined, cards: Card[]): Suggestion[] {
  if (QUERY.test(q)) return [{ to: to.explore(q), label: q, hint: "run query" }];
  const labelSuggestions = suggestLabelValues(q, fleet);
  if (labelSuggestions.length) return labelSuggestions;
  const lowerQuery = q.toLowerCase();
  const matches = parseFilter(q, fleet);
  const incidents = cards
    .filter((c) => `${c.id} ${c.title} ${c.cause}`.toLowerCase().includes(lowerQuery))
    .slice(0, 4)
    .map((c) => ({ to: to.incident(c.id), label: c.title, hint: c.id }));
  const nodes = (fleet?.nodes ?? [])
    .filter((n) => n.name.toLowerCase().includes(lowerQuery))
    .slice(0, 4)
    .map((n) => ({ to: to.node(n.name), label: n.name, hint: `node${n.rack ? ` in ${n.rack}` : ""}` }));
  const gpus: Suggestion[] = [];
  for (const n of fleet?.nodes ?? [])
    for (const g of n.gpus)
      if (g && gpus.length < 5 && matches(n, g))
        gpus.push({
          to: to.gpu(g.uuid),
          label: `${n.name} · GPU ${g.index ?? "?"}`,
          hint: g.workload ?? g.model ?? "",
        });
  return [
    ...incidents,
    ...nodes,
    ...suggestJobs(lowerQuery, fleet),
    ...gpus,
    ...(/\bs?xid\b/i.test(q)
      ? [{ to: `/journal?q=${encodeURIComponent(q)}`, label: q, hint: "search the journal" }]
      : []),
  ];
}

/** Suggest jobs whose workloads match; the pods of a job count as one job. */
function suggestJobs(lowerQuery: string, fleet: Fleet | undefined): Suggestion[] {
  const gpusByJob = new Map<string, number>();
  for (const n of fleet?.nodes ?? [])
    for (const g of n.gpus)
      if (g?.workload?.toLowerCase().includes(lowerQuery)) {
        const name = g.workload.replace(/[^/]*$/, jobName);
        gpusByJob.set(name, (gpusByJob.get(name) ?? 0) + 1);
      }
  return [...gpusByJob]
    .sort((a, b) => b[1] - a[1])
    .slice(0, 4)
    .map(([name, gpus]) => ({ to: to.job(name), label: name, hint: `job, ${plural(gpus, "GPU")}` }));
}
