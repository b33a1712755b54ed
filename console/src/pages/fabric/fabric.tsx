// The fabric: every link with state, load, errors, congestion and jobs, and the details of one link.

import { useMemo } from "preact/hooks";
import { Choice, Empty, MarkedText, Panel, RequestProblem, Select, Skeleton, Time } from "../../components/parts";
import { PortMap } from "../../components/portmap";
import { MEASURES, type Measure } from "../../components/portmap_layout";
import { type Column, Table } from "../../components/table";
import { useRequest } from "../../lib/api";
import { count, percentOf } from "../../lib/format";
import { type PageProps, param, setParam } from "../../lib/router";
import { usePulse } from "../../lib/store";
import "../../styles/pages.css";
import { FabricFigures, Legend, NoFabric, Source, Spines } from "./figures";
import {
  type FabricMap,
  formatRate,
  formatTimes,
  Jobs,
  type Link,
  linkGlyph,
  linkName,
  linkTone,
  stateText,
  switchPort,
  WINDOWS,
} from "./labels";
import { LinkPanel } from "./link";

const COLOURS = (Object.keys(MEASURES) as Measure[]).map((m) => [m, MEASURES[m].title] as const);

export function FabricPage({ address, theme }: PageProps) {
  const window = param(address, "window", "1h");
  const colour = (param(address, "colour", "load") in MEASURES ? param(address, "colour", "load") : "load") as Measure;
  const chosen = param(address, "link");
  const row = param(address, "row");
  const filterText = param(address, "q");
  const job = param(address, "job");
  const only = param(address, "only");
  const beat = usePulse();
  const { answer: map, problem } = useRequest<FabricMap>(`/api/fabric/map?window=${window}`, beat);
  const query = new URLSearchParams({
    window,
    limit: "500",
    ...(row && { row }),
    ...(filterText && { of: filterText }),
    ...(job && { job }),
    ...(only && { trouble: "1" }),
  });
  const links = useRequest<{ total: number; links: Link[] }>(`/api/fabric/links?${query}`, beat);
  const isFiltered = Boolean(row || filterText || job || only);
  const highlighted = useMemo(
    () => (isFiltered && links.answer ? new Set(links.answer.links.map((l) => l.id)) : undefined),
    [isFiltered, links.answer],
  );
  const choose = (id: string) => setParam("link", id === chosen ? null : id);
  return (
    <main data-testid="fabric-page">
      {map && map.counts.links > 0 && <FabricFigures map={map} address={address} />}
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
                  choose={(c) => setParam("colour", c === "load" ? null : c)}
                />
                <Select
                  label="errors over"
                  id="fabric-window"
                  options={WINDOWS}
                  value={window}
                  choose={(w) => setParam("window", w === "1h" ? null : w)}
                />
              </div>
            }
          >
            <RequestProblem problem={problem} isStale={Boolean(map)} />
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
                  chooseRow={(name) => setParam("row", name === row ? null : name)}
                  highlighted={highlighted}
                />
                <Legend measure={colour} map={map} />
              </>
            )}
          </Panel>
          {map && map.counts.links > 0 && (
            <Panel
              title="Links"
              id="links-panel"
              hint={links.answer && linkCountHint(links.answer.total, isFiltered ? map.counts.links : 0)}
              side={
                <div class="pick">
                  <input
                    id="filter"
                    class="narrow"
                    type="search"
                    value={filterText}
                    placeholder="Node, switch, job or state"
                    aria-label="Filter links"
                    data-testid="fabric-filter"
                    onInput={(e) => setParam("q", e.currentTarget.value)}
                  />
                  <button
                    type="button"
                    aria-pressed={only === "trouble"}
                    data-testid="fabric-trouble"
                    onClick={() => setParam("only", only ? null : "trouble")}
                  >
                    Problems
                  </button>
                </div>
              }
            >
              {(row || job) && (
                <p class="chips first">
                  {row && (
                    <button type="button" class="chip" onClick={() => setParam("row", null)}>
                      {row} ✕
                    </button>
                  )}
                  {job && (
                    <button type="button" class="chip" onClick={() => setParam("job", null)}>
                      job {job} ✕
                    </button>
                  )}
                </p>
              )}
              <Table
                id="links"
                caption="Links of the fabric, worst first"
                columns={columns(window, address)}
                rows={links.answer?.links}
                problem={links.problem}
                rowKey={(l) => l.id}
                rowTestId="link-row"
                choose={(l) => choose(l.id)}
                chosen={chosen}
                address={address}
                maxRows={100}
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
            <LinkPanel id={chosen} window={window} theme={theme} beat={beat} />
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
    value: (l) => linkName(l),
    cell: (l) => (
      <>
        {linkName(l)}
        {l.switch && <small class="plain">{switchPort(l)}</small>}
      </>
    ),
  },
  {
    id: "state",
    title: "State",
    value: (l) => stateText(l),
    cell: (l) => (
      <>
        <MarkedText tone={linkTone(l)} glyph={linkGlyph(l)}>
          {stateText(l)}
        </MarkedText>
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
  { id: "rate", title: "Rate", numeric: true, value: (l) => l.gbps, cell: (l) => formatRate(l.gbps), minor: true },
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
    cell: (l) => (l.wait_times == null ? "unknown" : formatTimes(l.wait_times)),
    hint: "time that the port waited to send for lack of credits, relative to the median of similar links",
  },
  {
    id: "jobs",
    title: "Jobs",
    value: (l) => l.jobs.join(" "),
    cell: (l) => <Jobs names={l.jobs} address={address} most={2} trunk={l.kind === "trunk"} />,
  },
];

function linkCountHint(links: number, all: number): string {
  const shown = links > 500 ? " · 500 shown" : "";
  return `${all ? `${count(links)} of ${count(all)}` : count(links)} · worst first${shown}`;
}
