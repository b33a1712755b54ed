// The journal: all entries, verification of the hash chain, and export.

import { useEffect, useState } from "preact/hooks";
import { Chip, Empty, MarkedText, Panel, Problem, Select, Time } from "../components/parts";
import { type Column, Table } from "../components/table";
import { type RequestError, request, useRequest } from "../lib/api";
import { count, entryName, shortDuration, timeOfDay } from "../lib/format";
import { type PageProps, param, setParam, setParams, to } from "../lib/router";
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
interface Verification {
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
  const [loaded, setLoaded] = useState<LoadedEntries | null>(null);
  const [isSearching, setSearching] = useState(false);
  const [olderProblem, setOlderProblem] = useState<RequestError>();
  const since = param(address, "since");
  const chosen = param(address, "entry");
  const query = new URLSearchParams({ limit: "200" });
  for (const name of FILTERS) if (param(address, name)) query.set(name, param(address, name));
  // Fix the start of the time range when the page opens: each refresh requests the same entries, and new ones.
  const [opened] = useState(() => Math.floor(now() / 60000) * 60);
  const beat = usePulse(10000);
  if (SPANS[since]) query.set("from", String(opened - SPANS[since]));
  const filters = query.toString();
  const { answer, problem } = useRequest<Page>(`/api/journal?${filters}`, beat);
  useEffect(() => {
    if (answer) setLoaded((old) => mergePage(old, answer, filters, true));
  }, [answer]);
  const current = answer && mergePage(loaded, answer, filters, true);
  const entries = current?.entries;
  const searchedTo = current?.searchedTo ?? 0;
  const hasOlder = answer && searchedTo > answer.first;
  const searchOlder = async () => {
    setSearching(true);
    try {
      const page = await request<Page>(`/api/journal?${filters}&before=${searchedTo}`);
      setLoaded((old) => mergePage(old, page, filters, false));
      setOlderProblem(undefined);
    } catch (error) {
      setOlderProblem(error as RequestError);
    }
    setSearching(false);
  };
  const kinds = Object.entries(answer?.kinds ?? {}).sort((a, b) => b[1] - a[1]);
  const file = new URLSearchParams(filters);
  file.delete("limit");
  const open = entries?.find((e) => String(e.seq) === chosen);
  return (
    <main data-testid="journal-page">
      <div class={open ? "columns" : "columns one"}>
        <div>
          <ChainPanel />
          <Panel
            title="Journal"
            id="journal-panel"
            hint={answer && `${count(entries!.length)} shown, newest first · ${totalHint(answer)}`}
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
                onInput={(e) => setParam("q", e.currentTarget.value)}
              />
              <label class="chip">
                event{" "}
                <Select
                  label="event"
                  id="journal-kind"
                  options={[["", "all"], ...kinds.map(([k, n]) => [k, `${entryName(k)} (${count(n)})`] as const)]}
                  value={param(address, "kind")}
                  choose={(k) => setParam("kind", k || null)}
                />
              </label>
              <label class="chip">
                time{" "}
                <Select
                  label="time"
                  id="journal-since"
                  options={SINCE}
                  value={since}
                  choose={(s) => setParam("since", s || null)}
                />
              </label>
              {(["subject", "actor"] as const).map(
                (name) =>
                  param(address, name) && (
                    <button type="button" class="chip" key={name} onClick={() => setParam(name, null)}>
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
                  onClick={() => setParams({ q: null, kind: null, since: null, subject: null, actor: null })}
                >
                  Clear filters
                </button>
              )}
            </div>
            <Table
              id="journal"
              caption="Entries of the journal, newest first"
              rows={entries}
              problem={problem ?? olderProblem}
              rowKey={(e) => String(e.seq)}
              rowTestId="entry-row"
              maxRows={200}
              columns={COLUMNS}
              choose={(e) => setParam("entry", String(e.seq) === chosen ? null : String(e.seq))}
              chosen={chosen}
              empty={
                problem?.status === 404 ? (
                  <Empty title="No journal">{problem.message}</Empty>
                ) : (
                  <Empty title="No entry matches">Remove a filter{hasOlder ? ", or search older entries" : ""}.</Empty>
                )
              }
            />
            {hasOlder && (
              <p class="more">
                <button type="button" disabled={isSearching} data-testid="further" onClick={searchOlder}>
                  {isSearching ? "Searching…" : "Search older entries"}
                </button>
                <span class="dim small"> searched back to entry {count(searchedTo)}</span>
              </p>
            )}
          </Panel>
        </div>
        {open && (
          <aside>
            <EntryPanel entry={open} />
          </aside>
        )}
      </div>
    </main>
  );
}

/** The loaded entries: all matches from the newest down to `searchedTo`, without a gap. */
interface LoadedEntries {
  filters: string;
  entries: Entry[];
  searchedTo: number;
  newestSeq: number;
}
function mergePage(old: LoadedEntries | null, page: Page, filters: string, isNewest: boolean): LoadedEntries {
  // The newest page does not reach back to the loaded entries: start again from it.
  if (old?.filters !== filters || (isNewest && page.looked_back_to > old.newestSeq))
    return { filters, entries: page.entries, searchedTo: page.looked_back_to, newestSeq: page.last };
  const entriesBySeq = new Map([...old.entries, ...page.entries].map((e) => [e.seq, e]));
  return {
    filters,
    entries: [...entriesBySeq.values()].sort((a, b) => b.seq - a.seq),
    searchedTo: Math.min(old.searchedTo, page.looked_back_to),
    newestSeq: isNewest ? page.last : old.newestSeq,
  };
}

/** The result of verifying the hash chain. */
function ChainPanel() {
  const [verifyCount, setVerifyCount] = useState(0);
  const { answer, problem } = useRequest<Verification>(
    `/api/journal/verify${verifyCount ? `?again=1&n=${verifyCount}` : ""}`,
  );
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
          <MarkedText tone={answer.is_intact ? "ok" : "critical"}>
            {answer.is_intact ? (
              <>
                <b>Journal verified (hash chain intact).</b> {count(answer.entries)}{" "}
                {answer.entries === 1 ? "entry" : "entries"}, verified{" "}
                {shortDuration(now() - Date.parse(answer.checked_at))} ago.
              </>
            ) : (
              <>
                <b>Entry {answer.first_broken} does not match its hash.</b> The journal was changed or damaged. Restore
                it from a backup, and check who can write to it.
              </>
            )}
          </MarkedText>
        </p>
      )}
      <button type="button" data-testid="verify" disabled={!answer} onClick={() => setVerifyCount((n) => n + 1)}>
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
      <button type="button" class="plain as-is" onClick={() => setParam("actor", e.actor)}>
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
        <button type="button" class="plain as-is" onClick={() => setParam("subject", e.subject)}>
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

function EntryPanel({ entry }: { entry: Entry }) {
  const body = JSON.stringify(entry.body, null, 2);
  return (
    <Panel
      title={`Entry ${count(entry.seq)}`}
      hint={<Time at={entry.at} full />}
      id="entry-panel"
      side={
        <button type="button" aria-label="Close this entry" onClick={() => setParam("entry", null)}>
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

const totalHint = ({ last, now }: Page) => `${count(last)} entries in total at ${timeOfDay(now)}`;
