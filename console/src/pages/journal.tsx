// The journal: all entries, verification of the hash chain, and export.

import { useEffect, useState } from "preact/hooks";
import { Chip, Empty, Mark, Panel, Problem, Select, Time } from "../components/parts";
import { type Column, Table } from "../components/table";
import { ask, type Refused, useAsk } from "../lib/api";
import { ago, clock, count, entryName } from "../lib/format";
import { type PageProps, param, put, putAll, to } from "../lib/router";
import { now, usePulse } from "../lib/store";
import "../styles/pages.css";

interface Entry {
  seq: number;
  at: string;
  actor: string;
  kind: string;
  subject: string;
  text: string;
  body: Record<string, unknown>;
  epoch: number;
  hash: string;
}
interface Page {
  now: string;
  entries: Entry[];
  first: number;
  last: number;
  looked_back_to: number;
  kinds: Record<string, number>;
}
interface Verdict {
  checked_at: string;
  entries: number;
  is_intact: boolean;
  first_broken: number | null;
}
const FILTERS = ["q", "kind", "subject", "actor", "from", "to"] as const;
const SINCE = [
  ["", "any time"],
  ["1h", "last hour"],
  ["1d", "last day"],
  ["7d", "last week"],
  ["30d", "last 30 days"],
] as const;
const SPANS: Record<string, number> = { "1h": 3600, "1d": 86400, "7d": 604800, "30d": 2592000 };

export function JournalPage({ address }: PageProps) {
  const [kept, keep] = useState<Held | null>(null);
  const [busy, work] = useState(false);
  const [trouble, say] = useState<Refused>();
  const since = param(address, "since");
  const chosen = param(address, "entry");
  const asked = new URLSearchParams({ limit: "200" });
  for (const name of FILTERS) if (param(address, name)) asked.set(name, param(address, name));
  // Where a span begins is said once: a page that stays open asks for the same entries again, and the newest.
  const [opened] = useState(() => Math.floor(now() / 60000) * 60);
  const beat = usePulse(10000);
  if (SPANS[since]) asked.set("from", String(opened - SPANS[since]));
  const filters = asked.toString();
  const { answer, problem } = useAsk<Page>(`/api/journal?${filters}`, beat);
  useEffect(() => {
    if (answer) keep((old) => grown(old, answer, filters, true));
  }, [answer]);
  const held = answer && grown(kept, answer, filters, true);
  const entries = held?.entries;
  const reached = held?.reached ?? 0;
  const rest = answer && reached > answer.first;
  const further = async () => {
    work(true);
    try {
      const page = await ask<Page>(`/api/journal?${filters}&before=${reached}`);
      keep((old) => grown(old, page, filters, false));
      say(undefined);
    } catch (error) {
      say(error as Refused);
    }
    work(false);
  };
  const kinds = Object.entries(answer?.kinds ?? {}).sort((a, b) => b[1] - a[1]);
  const file = new URLSearchParams(filters);
  file.delete("limit");
  const open = entries?.find((e) => String(e.seq) === chosen);
  return (
    <main data-testid="journal-page">
      <div class={open ? "columns" : "columns one"}>
        <div>
          <Chain />
          <Panel
            title="Journal"
            id="journal-panel"
            hint={answer && `${count(entries!.length)} shown, newest first · ${written(answer)}`}
            side={
              <a class="button" href={`/api/journal.jsonl?${file}`} download data-testid="journal-export" data-export>
                Export as JSON lines
              </a>
            }
          >
            <div class="explore-bar flush gap-below">
              <input
                id="filter"
                class="narrow"
                type="search"
                value={param(address, "q")}
                placeholder="Search text"
                aria-label="Filter entries"
                data-testid="journal-filter"
                onInput={(e) => put("q", e.currentTarget.value)}
              />
              <label class="chip">
                event{" "}
                <Select
                  label="event"
                  id="journal-kind"
                  options={[["", "all"], ...kinds.map(([k, n]) => [k, `${entryName(k)} (${count(n)})`] as const)]}
                  value={param(address, "kind")}
                  choose={(k) => put("kind", k || null)}
                />
              </label>
              <label class="chip">
                time{" "}
                <Select
                  label="time"
                  id="journal-since"
                  options={SINCE}
                  value={since}
                  choose={(s) => put("since", s || null)}
                />
              </label>
              {(["subject", "actor"] as const).map(
                (name) =>
                  param(address, name) && (
                    <button type="button" class="chip" key={name} onClick={() => put(name, null)}>
                      {name} {param(address, name)} ✕
                    </button>
                  ),
              )}
              {(param(address, "q") ||
                param(address, "kind") ||
                since ||
                param(address, "subject") ||
                param(address, "actor")) && (
                <button
                  type="button"
                  onClick={() => putAll({ q: null, kind: null, since: null, subject: null, actor: null })}
                >
                  Clear filters
                </button>
              )}
            </div>
            <Table
              id="journal"
              caption="Entries of the journal, newest first"
              rows={entries}
              problem={problem ?? trouble}
              rowKey={(e) => String(e.seq)}
              rowTestId="entry-row"
              most={200}
              columns={COLUMNS}
              choose={(e) => put("entry", String(e.seq) === chosen ? null : String(e.seq))}
              chosen={chosen}
              empty={
                problem?.status === 404 ? (
                  <Empty title="No journal">{problem.message}</Empty>
                ) : (
                  <Empty title="No entry matches">Remove a filter{rest ? ", or search older entries" : ""}.</Empty>
                )
              }
            />
            {rest && (
              <p class="more">
                <button type="button" disabled={busy} data-testid="further" onClick={further}>
                  {busy ? "Searching…" : "Search older entries"}
                </button>
                <span class="dim small"> searched back to entry {count(reached)}</span>
              </p>
            )}
          </Panel>
        </div>
        {open && (
          <aside>
            <One entry={open} />
          </aside>
        )}
      </div>
    </main>
  );
}

/** What is shown: every entry that fits from the newest that was asked for down to `reached`, without a hole. */
interface Held {
  filters: string;
  entries: Entry[];
  reached: number;
  upto: number;
}
function grown(old: Held | null, page: Page, filters: string, isNewest: boolean): Held {
  // So much was written since that the newest page does not reach down to what is here.
  if (old?.filters !== filters || (isNewest && page.looked_back_to > old.upto))
    return { filters, entries: page.entries, reached: page.looked_back_to, upto: page.last };
  const found = new Map([...old.entries, ...page.entries].map((e) => [e.seq, e]));
  return {
    filters,
    entries: [...found.values()].sort((a, b) => b.seq - a.seq),
    reached: Math.min(old.reached, page.looked_back_to),
    upto: isNewest ? page.last : old.upto,
  };
}

/** Whether every entry still carries the hash that the next one names. */
function Chain() {
  const [again, ask] = useState(0);
  const { answer, problem } = useAsk<Verdict>(`/api/journal/verify${again ? `?again=1&n=${again}` : ""}`);
  return (
    <Panel id="chain-panel" class="chain">
      {problem ? (
        problem.status === 404 ? (
          <p class="dim">{problem.message}</p>
        ) : (
          <Problem>{problem.message}</Problem>
        )
      ) : !answer ? (
        <p class="dim">Verifying the hash chain…</p>
      ) : (
        <p data-testid="chain">
          <Mark tone={answer.is_intact ? "ok" : "critical"}>
            {answer.is_intact ? (
              <>
                <b>Journal verified (hash chain intact).</b> {count(answer.entries)}{" "}
                {answer.entries === 1 ? "entry" : "entries"}, verified {ago(now() - Date.parse(answer.checked_at))} ago.
              </>
            ) : (
              <>
                <b>Entry {answer.first_broken} does not match its hash.</b> The journal was changed or damaged. Restore
                it from a backup, and check who can write to it.
              </>
            )}
          </Mark>
        </p>
      )}
      <button type="button" data-testid="verify" disabled={!answer} onClick={() => ask((n) => n + 1)}>
        Verify again
      </button>
    </Panel>
  );
}

const isIncident = (subject: string) => /^INC-\d+$/.test(subject);
const COLUMNS: Column<Entry>[] = [
  { id: "at", title: "Time", value: (e) => e.at, cell: (e) => <Time at={e.at} full />, class: "when" },
  {
    id: "actor",
    title: "Actor",
    class: "wide-only",
    value: (e) => e.actor,
    cell: (e) => (
      <button type="button" class="plain as-is" onClick={() => put("actor", e.actor)}>
        {e.actor}
      </button>
    ),
  },
  { id: "kind", title: "Event", value: (e) => e.kind, cell: (e) => entryName(e.kind), class: "when wide-only" },
  {
    id: "subject",
    title: "Subject",
    value: (e) => e.subject,
    cell: (e) =>
      isIncident(e.subject) ? (
        <a href={to.incident(e.subject)}>{e.subject}</a>
      ) : (
        <button type="button" class="plain as-is" onClick={() => put("subject", e.subject)}>
          {e.subject}
        </button>
      ),
    class: "about",
  },
  {
    id: "text",
    title: "Message",
    value: (e) => e.text,
    cell: (e) => e.text || <span class="dim">–</span>,
    class: "words-cell",
  },
  { id: "seq", title: "No.", numeric: true, minor: true, value: (e) => e.seq },
];

function One({ entry }: { entry: Entry }) {
  const body = JSON.stringify(entry.body, null, 2);
  return (
    <Panel
      title={`Entry ${count(entry.seq)}`}
      hint={<Time at={entry.at} full />}
      id="entry-panel"
      side={
        <button type="button" aria-label="Close this entry" onClick={() => put("entry", null)}>
          ✕
        </button>
      }
    >
      <p>{entry.text}</p>
      <p class="chips">
        <Chip>{entryName(entry.kind)}</Chip>
        <Chip>by {entry.actor}</Chip>
        <Chip title="leader epoch">epoch {entry.epoch}</Chip>
      </p>
      <pre class="json" tabIndex={0}>
        {body.length > 20000 ? `${body.slice(0, 20000)}…` : body}
      </pre>
      <p class="dim small hash" title="SHA-256 of this entry and the hash of the previous entry">
        hash {entry.hash}
      </p>
    </Panel>
  );
}

const written = ({ last, now }: Page) => `${count(last)} entries in total at ${clock(now)}`;
