// The fabric: every link with state, load, errors, congestion and jobs, and the details of one link.

import { useMemo } from "preact/hooks";
import { Choice, Empty, Mark, Panel, Select, Skeleton, Time, Trouble } from "../../components/parts";
import { PortMap } from "../../components/portmap";
import { MEASURES, type Measure } from "../../components/portmap_layout";
import { type Column, Table } from "../../components/table";
import { useAsk } from "../../lib/api";
import { count, percentOf } from "../../lib/format";
import { type PageProps, param, put } from "../../lib/router";
import { usePulse } from "../../lib/store";
import "../../styles/pages.css";
import { Figures, Legend, NoFabric, Source, Spines } from "./figures";
import {
  endOf,
  type FabricMap,
  glyphOf,
  Jobs,
  type Link,
  rate,
  switchOf,
  times,
  toneOf,
  WINDOWS,
  wordOf,
} from "./labels";
import { OneLink } from "./link";

const COLOURS = (Object.keys(MEASURES) as Measure[]).map((m) => [m, MEASURES[m].title] as const);

export function FabricPage({ address, theme }: PageProps) {
  const window = param(address, "window", "1h");
  const colour = (param(address, "colour", "load") in MEASURES ? param(address, "colour", "load") : "load") as Measure;
  const chosen = param(address, "link");
  const row = param(address, "row");
  const words = param(address, "q");
  const job = param(address, "job");
  const only = param(address, "only");
  const beat = usePulse();
  const { answer: map, problem } = useAsk<FabricMap>(`/api/fabric/map?window=${window}`, beat);
  const asked = new URLSearchParams({
    window,
    limit: "500",
    ...(row && { row }),
    ...(words && { of: words }),
    ...(job && { job }),
    ...(only && { trouble: "1" }),
  });
  const list = useAsk<{ total: number; links: Link[] }>(`/api/fabric/links?${asked}`, beat);
  const narrowed = Boolean(row || words || job || only);
  const among = useMemo(
    () => (narrowed && list.answer ? new Set(list.answer.links.map((l) => l.id)) : undefined),
    [narrowed, list.answer],
  );
  const choose = (id: string) => put("link", id === chosen ? null : id);
  return (
    <main data-testid="fabric-page">
      {map && map.counts.links > 0 && <Figures map={map} address={address} />}
      <div class={chosen ? "columns" : "columns one"}>
        <div>
          <Panel
            title="Fabric"
            id="fabric-panel"
            hint={map && <Source map={map} />}
            side={
              <div class="pick">
                <Choice
                  label="colour"
                  id="fabric-colour"
                  options={COLOURS}
                  value={colour}
                  choose={(c) => put("colour", c === "load" ? null : c)}
                />
                <Select
                  label="errors over"
                  id="fabric-window"
                  options={WINDOWS}
                  value={window}
                  choose={(w) => put("window", w === "1h" ? null : w)}
                />
              </div>
            }
          >
            <Trouble problem={problem} isStale={Boolean(map)} />
            {map?.problem && (
              <p class="silenced" data-testid="fabric-doubt">
                ▲ Incomplete: {map.problem}
              </p>
            )}
            {!map ? (
              !problem && <Skeleton height={220} />
            ) : map.counts.links === 0 ? (
              <NoFabric />
            ) : (
              <>
                {map.spines.length > 0 && <Spines map={map} row={row} address={address} />}
                <PortMap
                  rows={map.rows}
                  states={map.states}
                  measure={colour}
                  theme={theme}
                  chosen={chosen}
                  choose={choose}
                  row={row}
                  chooseRow={(name) => put("row", name === row ? null : name)}
                  among={among}
                />
                <Legend measure={colour} map={map} />
              </>
            )}
          </Panel>
          {map && map.counts.links > 0 && (
            <Panel
              title="Links"
              id="links-panel"
              hint={list.answer && counted(list.answer.total, narrowed ? map.counts.links : 0)}
              side={
                <div class="pick">
                  <input
                    id="filter"
                    class="narrow"
                    type="search"
                    value={words}
                    placeholder="Node, switch, job or state"
                    aria-label="Filter links"
                    data-testid="fabric-filter"
                    onInput={(e) => put("q", e.currentTarget.value)}
                  />
                  <button
                    type="button"
                    aria-pressed={only === "trouble"}
                    data-testid="fabric-trouble"
                    onClick={() => put("only", only ? null : "trouble")}
                  >
                    Problems
                  </button>
                </div>
              }
            >
              {(row || job) && (
                <p class="chips first">
                  {row && (
                    <button type="button" class="chip" onClick={() => put("row", null)}>
                      {row} ✕
                    </button>
                  )}
                  {job && (
                    <button type="button" class="chip" onClick={() => put("job", null)}>
                      job {job} ✕
                    </button>
                  )}
                </p>
              )}
              <Table
                id="links"
                caption="Links of the fabric, worst first"
                columns={columns(window, address)}
                rows={list.answer?.links}
                problem={list.problem}
                rowKey={(l) => l.id}
                rowTestId="link-row"
                choose={(l) => choose(l.id)}
                chosen={chosen}
                address={address}
                most={100}
                empty={
                  <Empty title="No link matches">
                    {only ? "No link is down, slow or congested, and none has errors." : "Change the filter."}
                  </Empty>
                }
              />
            </Panel>
          )}
        </div>
        {chosen && (
          <aside>
            <OneLink id={chosen} window={window} theme={theme} beat={beat} />
          </aside>
        )}
      </div>
    </main>
  );
}

export const columns = (window: string, address: URL): Column<Link>[] => [
  {
    id: "end",
    title: "Link",
    value: (l) => endOf(l),
    cell: (l) => (
      <>
        {endOf(l)}
        {l.switch && <small class="plain">{switchOf(l)}</small>}
      </>
    ),
  },
  {
    id: "state",
    title: "State",
    value: (l) => wordOf(l),
    cell: (l) => (
      <>
        <Mark tone={toneOf(l)} glyph={glyphOf(l)}>
          {wordOf(l)}
        </Mark>
        {(l.why || l.down_since) && (
          <small class="plain">
            {l.why}
            {l.down_since && (
              <>
                {" "}
                since <Time at={l.down_since} full />
              </>
            )}
          </small>
        )}
      </>
    ),
  },
  { id: "rate", title: "Rate", numeric: true, value: (l) => l.gbps, cell: (l) => rate(l.gbps), minor: true },
  {
    id: "load",
    title: "Load",
    numeric: true,
    class: "wide-only",
    value: (l) => l.load,
    cell: (l) => percentOf(l.load),
    hint: "busier direction, over 5 minutes",
  },
  {
    id: "errors",
    title: `Errors, ${window}`,
    numeric: true,
    value: (l) => l.errors && Math.round(l.errors),
    hint: "sum of the error counters: symbol errors, receive errors, link recoveries and similar",
  },
  {
    id: "wait",
    title: "Congestion",
    numeric: true,
    class: "wide-only",
    value: (l) => l.wait_times,
    cell: (l) => (l.wait_times == null ? "unknown" : times(l.wait_times)),
    hint: "time that the port waited to send for lack of credits, relative to the median of similar links",
  },
  {
    id: "jobs",
    title: "Jobs",
    value: (l) => l.jobs.join(" "),
    cell: (l) => <Jobs names={l.jobs} address={address} most={2} trunk={l.kind === "trunk"} />,
  },
];

function counted(links: number, all: number): string {
  const shown = links > 500 ? " · 500 shown" : "";
  return `${all ? `${count(links)} of ${count(all)}` : count(links)} · worst first${shown}`;
}
