// All incidents: open ones by severity, resolved ones newest first; state, severity, order and search text are
// in the URL.

import { Choice, Empty, GLYPH, incidentState, Panel, Select, Time } from "../../components/parts";
import { type Column, Table } from "../../components/table";
import { useRequest } from "../../lib/api";
import { countAtLeast, percent, shortDuration, workloadName } from "../../lib/format";
import { type PageProps, param, setParam, setParams, to } from "../../lib/router";
import { now, useHub } from "../../lib/store";
import type { Card } from "../../lib/types";
import { SilencedChip } from "./notifications";

const STATES = [
  ["", "open"],
  ["acknowledged", "acknowledged"],
  ["resolved", "resolved"],
  ["all", "all"],
] as const;

const SEVERITIES = [
  ["", "any severity"],
  ["critical", "critical"],
  ["warning", "warning"],
  ["info", "info"],
] as const;

const SEVERITY_RANK = { critical: 3, warning: 2, info: 1 };

const COLUMNS: Column<Card>[] = [
  {
    id: "what",
    title: "Incident",
    value: (c) => c.title,
    class: "what",
    cell: (c) => (
      <>
        <span class={`mark ${c.state === "resolved" ? "closed" : c.severity}`} title={c.severity}>
          {GLYPH[c.severity]}
        </span>
        <a href={to.incident(c.id)}>{c.title}</a>
        <small>
          {c.id}
          {c.part_of && ` · part of ${c.part_of}`}
        </small>
      </>
    ),
  },
  {
    id: "severity",
    title: "Severity",
    value: (c) => SEVERITY_RANK[c.severity],
    numeric: true,
    class: "left wide-only",
    cell: (c) => c.severity,
  },
  { id: "place", title: "Place", minor: true, value: (c) => c.place_name },
  {
    id: "state",
    title: "State",
    value: (c) => c.state,
    class: "nowrap",
    cell: (c) => (
      <>
        {incidentState(c)} {c.state !== "resolved" && shortDuration(now() - Date.parse(c.opened_at))}
        {(c.assignee || c.silenced_by || c.repair) && (
          <small class="plain">
            {c.repair && `${c.repair.activity} `}
            {c.assignee && `assigned to ${c.assignee} `}
            <SilencedChip silence={c.silenced_by} />
          </small>
        )}
      </>
    ),
  },
  {
    id: "opened",
    title: "Opened",
    value: (c) => c.opened_at,
    class: "nowrap wide-only",
    cell: (c) => <Time at={c.opened_at} full />,
  },
  {
    id: "sure",
    title: "Confidence",
    numeric: true,
    class: "wide-only",
    value: (c) => c.confidence,
    cell: (c) => (c.confidence == null ? "unknown" : percent(100 * c.confidence)),
  },
  {
    id: "hits",
    title: "Impact",
    minor: true,
    value: (c) => c.workloads.join(" "),
    cell: (c) =>
      c.workloads.length ? (
        <span title={c.workloads.join("\n")}>
          {workloadName(c.workloads[0])}
          {c.workloads.length > 1 && ` +${c.workloads.length - 1}`}
        </span>
      ) : c.place.node ? (
        "none"
      ) : (
        "unknown"
      ),
  },
  {
    id: "next",
    title: "Next step",
    minor: true,
    value: (c) => c.next_step ?? "",
    cell: (c) => (c.repair ? c.repair.activity : (c.next_step ?? "–")),
  },
];

const COUNTED: Record<string, string> = { all: "in total", resolved: "resolved" };

/** `?state=resolved&severity=critical&text=rack`; old links write `all=1` for `state=all`. */
export function IncidentsPage({ address }: PageProps) {
  const { open, closed } = useHub();
  const state = param(address, "state", param(address, "all") === "1" ? "all" : "");
  const severity = param(address, "severity");
  const text = param(address, "text");
  const version = JSON.stringify(
    [open, closed].map((list) =>
      list?.map((c) => [c.id, incidentState(c), c.confidence, c.assignee, c.silenced_by?.id]),
    ),
  );
  const { answer, problem } = useRequest<{ incidents: Card[]; has_more: boolean }>(
    `/api/incidents?limit=1000&open=${state === "all" || state === "resolved" ? 0 : 1}`,
    version,
  );
  const incidents = answer?.incidents;
  const rows = incidents?.filter((c) => matches(c, state, severity, text));
  const isFiltered = Boolean(severity || text || state === "acknowledged");
  return (
    <main class="single">
      <Panel
        title="Incidents"
        hint={
          rows &&
          incidents &&
          (isFiltered
            ? `${rows.length} of ${countAtLeast(incidents.length, answer.has_more)}`
            : `${countAtLeast(rows.length, answer.has_more)} ${COUNTED[state] ?? "open"}`)
        }
        id="incidents-panel"
        side={
          <div class="pick">
            <input
              class="narrow"
              type="search"
              value={text}
              placeholder="Title, place, cause, assignee"
              aria-label="Filter incidents"
              data-testid="filter-text"
              onInput={(e) => setParam("text", e.currentTarget.value || null)}
            />
            <Select
              label="Severity"
              id="filter-severity"
              value={severity}
              options={SEVERITIES}
              choose={(v) => setParam("severity", v || null)}
            />
            <Choice
              label="State"
              id="filter-state"
              value={state}
              options={STATES}
              choose={(v) => setParams({ all: null, state: v || null })}
            />
          </div>
        }
      >
        <Table
          id="incidents"
          caption="Incidents"
          columns={COLUMNS}
          rows={rows}
          rowKey={(c) => c.id}
          rowTestId="incident-row"
          href={(c) => to.incident(c.id)}
          incident={(c) => c.id}
          problem={problem}
          address={address}
          sort={state === "resolved" || state === "all" ? undefined : "-severity"}
          empty={<EmptyList state={state} filtered={isFiltered} />}
        />
        <p class="keys">
          <kbd>j</kbd>
          <kbd>k</kbd> move <kbd>Enter</kbd> open <kbd>a</kbd> acknowledge <kbd>n</kbd> note <kbd>e</kbd> export
        </p>
      </Panel>
    </main>
  );
}

function matches(card: Card, state: string, severity: string, text: string): boolean {
  if ((state === "acknowledged" || state === "resolved") && card.state !== state) return false;
  if (severity && card.severity !== severity) return false;
  const searchText = [card.id, card.title, card.place_name, card.cause, card.assignee ?? "", ...card.workloads]
    .join(" ")
    .toLowerCase();
  return text
    .toLowerCase()
    .split(/\s+/)
    .every((word) => searchText.includes(word));
}

function EmptyList({ state, filtered }: { state: string; filtered: boolean }) {
  if (filtered)
    return (
      <Empty title="No incident matches the filter">
        <a href="/incidents">Clear the filter</a>
      </Empty>
    );
  if (state === "all") return <Empty title="No incidents yet">The journal is empty.</Empty>;
  return state === "resolved" ? (
    <Empty title="No resolved incidents yet">
      <a href="/incidents">Show open incidents</a>
    </Empty>
  ) : (
    <Empty title="No open incidents">
      <a href="/incidents?state=all">Show resolved incidents</a>
    </Empty>
  );
}
