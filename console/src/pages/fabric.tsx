// The fabric: every link with its state, load, errors and waiting, which jobs are on it, and one link in full.

import { useMemo } from "preact/hooks";
import { heat } from "../components/heatmap";
import { Chip, Choice, Empty, Facts, Mark, Panel, Problem, Select, Skeleton, Tile, Time } from "../components/parts";
import { MARKS, MEASURES, type Measure, markOf, PortMap, type Row } from "../components/portmap";
import { Strips } from "../components/strips";
import { type Column, Export, Table } from "../components/table";
import { useAsk } from "../lib/api";
import { ago, count, many, percentOf } from "../lib/format";
import { type PageProps, param, put, putAll, to, withParams } from "../lib/router";
import { now, useHub, usePulse } from "../lib/store";
import "../styles/pages.css";

interface Map {
  now: string;
  window: string;
  source: "sweep" | "hosts" | null;
  swept_at: string | null;
  problem: string;
  states: string[];
  counts: {
    links: number;
    down: number;
    slow: number;
    unknown: number;
    errs: number;
    waits: number;
    uncounted: number;
    jobs: number;
    mute_nodes: number;
  };
  spines: { name: string; state: string; links: number; trouble: string[] }[];
  rows: Row[];
}
interface Link {
  id: string;
  kind: "host" | "trunk";
  row: string | null;
  switch: string | null;
  switch_port: number | null;
  peer: string;
  device: string | null;
  port: number;
  state: string;
  why: string;
  gbps: number | null;
  down_since: string | null;
  load: number | null;
  errors: number | null;
  errs: boolean;
  waits: boolean;
  wait_per_second: number | null;
  wait_times: number | null;
  discards: number | null;
  jobs: string[];
}
interface Port {
  window: string;
  link: Link;
  series: { traffic: string; errors: string; wait: string };
  counters: { name: string; grown: number; meaning: string | null; action: string | null }[];
  incidents: { id: string; title: string; severity: string }[];
}
const WINDOWS = [
  ["15m", "15 min"],
  ["1h", "1 h"],
  ["6h", "6 h"],
] as const;
const COLOURS = (Object.keys(MEASURES) as Measure[]).map((m) => [m, MEASURES[m].title] as const);

const toneOf = (link: Link) =>
  ["down", "gone", "critical", "missing"].includes(link.state)
    ? "critical"
    : link.errs
      ? "critical"
      : link.state === "slow" || link.waits
        ? "warning"
        : link.state === "healthy"
          ? "ok"
          : "";
const wordOf = (link: Link) =>
  [
    link.state === "healthy" ? (link.errs || link.waits ? "" : "up") : link.state,
    link.errs && "errors",
    link.waits && "waits",
  ]
    .filter(Boolean)
    .join(", ");
const glyphOf = (link: Link) =>
  toneOf(link) === "critical" && link.state === "healthy"
    ? "◆"
    : link.state === "healthy" && link.waits && !link.errs
      ? "‖"
      : undefined;
const endOf = (link: Link) =>
  link.kind === "host"
    ? `${link.peer} ${link.device}${link.port > 1 ? `/${link.port}` : ""}`
    : `${link.peer} port ${link.port}`;
const switchOf = (link: Link) => (link.switch ? `${link.switch} port ${link.switch_port}` : null);
export const rate = (gbps: number | null) => (gbps == null ? "unknown" : `${count(gbps)} Gb/s`);

export function FabricPage({ address, theme }: PageProps) {
  const window = param(address, "window", "1h");
  const colour = (param(address, "colour", "load") in MEASURES ? param(address, "colour", "load") : "load") as Measure;
  const chosen = param(address, "link");
  const row = param(address, "row");
  const words = param(address, "q");
  const job = param(address, "job");
  const only = param(address, "only");
  const beat = usePulse();
  const { answer: map, problem } = useAsk<Map>(`/api/fabric/map?window=${window}`, beat);
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
            {problem && (
              <Problem>{map ? `This is what was known before: ${problem.message}` : problem.message}</Problem>
            )}
            {map?.problem && (
              <p class="silenced" data-testid="fabric-doubt">
                ▲ Not all is known: {map.problem}
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
              hint={
                list.answer &&
                `${count(list.answer.total)}${narrowed ? ` of ${count(map.counts.links)}` : ""} · the worst first${list.answer.total > 500 ? " · 500 shown" : ""}`
              }
              side={
                <div class="pick">
                  <input
                    id="filter"
                    class="narrow"
                    type="search"
                    value={words}
                    placeholder="Node, switch, job or state"
                    aria-label="Only links with these words"
                    data-testid="fabric-filter"
                    onInput={(e) => put("q", e.currentTarget.value)}
                  />
                  <button
                    type="button"
                    aria-pressed={only === "trouble"}
                    data-testid="fabric-trouble"
                    onClick={() => put("only", only ? null : "trouble")}
                  >
                    In trouble
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
                caption="Links of the fabric, the worst first"
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
                  <Empty title="No link is like this">
                    {only ? "None of these is down, slow, has errors or waits." : "Take a word out of the filter."}
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

function Figures({ map, address }: { map: Map; address: URL }) {
  const { counts } = map;
  const span = WINDOWS.find(([w]) => w === map.window)?.[1];
  const counted = counts.uncounted < counts.links;
  return (
    <section class="tiles even gap-below" aria-label="the fabric in figures">
      <Tile
        name="Links"
        value={count(counts.links)}
        meaning={`${map.source === "sweep" ? leaves(map.rows.length) : many(map.rows.length, "row")}${map.spines.length ? ` · ${many(map.spines.length, "spine")}` : " · spines unknown"}`}
        id="tile-links"
      />
      <Tile
        name="Down"
        value={count(counts.down)}
        tone={counts.down ? "bad" : undefined}
        meaning={
          [
            counts.unknown && `${count(counts.unknown)} unknown`,
            counts.mute_nodes && `${many(counts.mute_nodes, "node")} tell${counts.mute_nodes === 1 ? "s" : ""} of none`,
          ]
            .filter(Boolean)
            .join(" · ") || "state of all others known"
        }
        id="tile-down"
        href={withParams(address, { only: "trouble" })}
      />
      <Tile
        name="Slow"
        value={map.source === "sweep" ? count(counts.slow) : "unknown"}
        tone={counts.slow ? "warn" : undefined}
        meaning={
          map.source === "sweep"
            ? "below the rate of their switch's other ports"
            : "only a sweep compares ports of a switch"
        }
        id="tile-slow"
      />
      <Tile
        name={`Errors in ${span}`}
        value={counted ? count(counts.errs) : "unknown"}
        tone={counts.errs ? "bad" : undefined}
        meaning={
          counted
            ? `links over 120 / h or gone down${counts.uncounted ? ` · ${count(counts.uncounted)} not counted` : ""}`
            : "no port's errors are counted"
        }
        id="tile-errors"
      />
      <Tile
        name="Congested"
        value={map.rows.some((r) => r.cells.some((c) => c[6] != null)) ? count(counts.waits) : "unknown"}
        tone={counts.waits ? "warn" : undefined}
        meaning="wait 8× longer than their peers to send"
        id="tile-waits"
      />
      <Tile
        name="Jobs on bad links"
        value={count(counts.jobs)}
        tone={counts.jobs ? "warn" : undefined}
        meaning={counts.jobs ? "all their ranks wait for the slowest link" : "no running job is on one"}
        id="tile-jobs"
      />
    </section>
  );
}

const leaves = (n: number) => `${count(n)} ${n === 1 ? "leaf" : "leaves"}`;
const times = (n: number) => (n < 0.1 ? "< 0.1×" : `${Number(n.toPrecision(2))}×`);
function Source({ map }: { map: Map }) {
  if (map.source === "sweep")
    return (
      <>
        swept {map.swept_at && <>{ago(now() - Date.parse(map.swept_at))} ago </>}· a row is a leaf: its trunks, then its
        hosts
      </>
    );
  return map.source === "hosts" ? (
    <>
      as hosts tell of their own ports · switches and trunks unknown · a row is a leaf or rack of the inventory, ports
      of a node stand together
    </>
  ) : (
    <>unknown</>
  );
}
function NoFabric() {
  return (
    <Empty title="Nobody tells about a fabric">
      Hosts with InfiniBand ports tell of them through node_exporter or the agent. To see switches and trunks too, set{" "}
      <code>sweep</code> or <code>ufm_url</code> under <code>[fabric]</code>, or run{" "}
      <code>watchkeeper fabric sweep --push</code> on a host that has an adapter.
    </Empty>
  );
}

function Spines({ map, row, address }: { map: Map; row: string; address: URL }) {
  return (
    <p class="spines" aria-label="spines">
      <span class="dim">Spines</span>
      {map.spines.map((s) => (
        <a
          key={s.name}
          class={`chip ${s.state === "healthy" ? "" : s.state === "gone" ? "critical" : s.state === "unknown" ? "" : "warning"}`}
          aria-current={s.name === row || undefined}
          title={s.trouble.join("\n") || `${many(s.links, "link")}, all as before`}
          href={withParams(address, { row: s.name === row ? null : s.name })}
        >
          <i aria-hidden="true">
            {s.state === "healthy" ? "✓" : s.state === "gone" ? "✕" : s.state === "unknown" ? "–" : "▲"}
          </i>{" "}
          {s.name}
          {s.state !== "healthy" && ` · ${s.state}`}
        </a>
      ))}
    </p>
  );
}

function Legend({ measure, map }: { measure: Measure; map: Map }) {
  const cells = map.rows.flatMap((r) => r.cells);
  const seen = new Set(cells.map((c) => markOf(c, map.states)));
  const [low, mid, high] = MEASURES[measure].ticks;
  return (
    <div class="legend" data-testid="fabric-legend">
      <span class="ramp">
        <i>{low}</i>
        {[0, 0.25, 0.5, 0.75, 1].map((s) => (
          <em key={s} style={{ background: heat(s) }} />
        ))}
        <i>{high}</i>
      </span>
      <span>
        {MEASURES[measure].title}
        {measure === "errors" ? `, ${mid} in the middle` : measure === "wait" ? ", beside the median" : ""}
      </span>
      {MARKS.map((m) => (
        <span key={m.name} class={seen.has(m.name) ? m.name : "dim"}>
          <i aria-hidden="true">{m.glyph}</i> {m.text}
        </span>
      ))}
    </div>
  );
}

const columns = (window: string, address: URL): Column<Link>[] => [
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
    hint: "the busier way, over 5 minutes",
  },
  {
    id: "errors",
    title: `Errors, ${window}`,
    numeric: true,
    value: (l) => l.errors && Math.round(l.errors),
    hint: "symbol errors, receive errors, recoveries and the like, together",
  },
  {
    id: "wait",
    title: "Waits",
    numeric: true,
    class: "wide-only",
    value: (l) => l.wait_times,
    cell: (l) => (l.wait_times == null ? "unknown" : times(l.wait_times)),
    hint: "time with data to send and no leave to, beside the median of such links",
  },
  {
    id: "jobs",
    title: "Jobs on it",
    value: (l) => l.jobs.join(" "),
    cell: (l) => <Jobs names={l.jobs} address={address} most={2} trunk={l.kind === "trunk"} />,
  },
];
function Jobs({ names, most, trunk }: { names: string[]; address?: URL; most: number; trunk: boolean }) {
  if (!names.length) return <span class="dim">none</span>;
  return (
    <>
      {trunk && <span class="dim">crossed by </span>}
      {names.slice(0, most).map((n, i) => (
        <>
          {i > 0 && ", "}
          <a key={n} href={to.job(n)}>
            {n}
          </a>
        </>
      ))}
      {names.length > most && (
        <span class="dim" title={names.join("\n")}>
          {" "}
          and {names.length - most} more
        </span>
      )}
    </>
  );
}

function OneLink({ id, window, theme, beat }: { id: string; window: string; theme: string; beat: number }) {
  const { answer, problem } = useAsk<Port>(`/api/fabric/port?${new URLSearchParams({ window, id })}`, beat);
  const { status } = useHub();
  const close = (
    <button type="button" onClick={() => putAll({ link: null })} data-testid="link-close" aria-label="Close this link">
      ✕
    </button>
  );
  if (!answer)
    return (
      <Panel title={id.replaceAll("/", " · ")} side={close} id="link-panel">
        {problem ? <Problem>{problem.message}</Problem> : <Skeleton lines={8} />}
      </Panel>
    );
  const { link, counters, series, incidents } = answer;
  const grown = counters.filter((c) => c.grown >= 0.5);
  const quiet = counters.length - grown.length;
  const end = Math.floor(now() / 15000) * 15000;
  const bad = counters.find((c) => c.grown >= 0.5 && c.action);
  return (
    <Panel title={endOf(link)} hint={switchOf(link) ?? "switch unknown"} side={close} id="link-panel">
      <Facts
        rows={[
          [
            "State",
            <Mark tone={toneOf(link)} glyph={glyphOf(link)}>
              {wordOf(link)}
              {link.why && ` · ${link.why}`}
              {link.down_since && (
                <>
                  {" "}
                  since <Time at={link.down_since} full />
                </>
              )}
            </Mark>,
          ],
          ["Rate", rate(link.gbps)],
          [
            "Load",
            <>
              {percentOf(link.load)}
              {link.load != null && link.gbps && <span class="dim"> · {count(link.load * link.gbps)} Gb/s</span>}
            </>,
          ],
          [
            "Congestion",
            link.wait_times == null
              ? "unknown: waiting is not counted here"
              : `waits ${times(link.wait_times)} as long as such links usually do`,
          ],
          ["Discards", link.discards == null ? null : `${count(Math.round(link.discards))} in ${window}`],
          [
            "Jobs",
            <>
              <Jobs names={link.jobs} most={8} trunk={link.kind === "trunk"} />
              {link.kind === "trunk" && link.jobs.length > 0 && (
                <small class="plain">
                  jobs with a node on this leaf and one that is not; which trunk carries them is up to routing
                </small>
              )}
            </>,
          ],
          ["Node", link.kind === "host" ? <a href={to.node(link.peer)}>{link.peer}</a> : null],
          [
            "Incidents",
            incidents.length
              ? incidents.map((i) => (
                  <a key={i.id} href={to.incident(i.id)}>
                    {i.title}{" "}
                  </a>
                ))
              : "none open about it",
          ],
        ]}
      />
      {bad?.action && toneOf(link) !== "ok" && (
        <p class="next">
          <b>Next</b> {bad.action}
        </p>
      )}
      <h2 class="gap">
        Counters <span class="hint">growth in {window}</span>
      </h2>
      {counters.length === 0 ? (
        <p class="dim">No counter of this link has come.</p>
      ) : grown.length === 0 ? (
        <p class="dim">{many(counters.length, "counter")}, and none has grown.</p>
      ) : (
        <table class="facts counters" data-testid="counters">
          <tbody>
            {grown.map((c) => (
              <tr key={c.name}>
                <th scope="row">
                  {c.name}
                  <small class="plain">{c.meaning}</small>
                </th>
                <td class="n">+{count(Math.round(c.grown))}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {grown.length > 0 && (
        <p class="foot-line">
          <Export
            id="counters"
            columns={[
              { title: "counter", value: (c) => c.name },
              { title: "grown", value: (c) => c.grown },
              { title: "meaning", value: (c) => c.meaning },
            ]}
            rows={grown}
          />
        </p>
      )}
      {grown.length > 0 && quiet > 0 && <p class="dim small">{many(quiet, "other counter")} did not grow.</p>}
      <h2 class="gap">Last hour</h2>
      {status && (
        <Strips
          id="link-strips"
          quiet
          name={`Traffic, errors and waiting of ${id}`}
          band={52}
          theme={theme}
          start={end - 3600000}
          end={end}
          marks={link.down_since ? [{ at: link.down_since, label: "down", tone: "bad" }] : []}
          strips={[
            { label: "Traffic", unit: "B/s", expr: series.traffic },
            { label: "Errors, 5 min", unit: "", expr: series.errors, tone: "bad" },
            { label: "Waiting", unit: "ticks/s", expr: series.wait, tone: "warn" },
          ]}
        />
      )}
      <p class="chips">
        <a class="chip" href={to.explore(series.traffic)}>
          Explore this traffic
        </a>
        {link.kind === "host" && <Chip title="as its host calls it">{link.device}</Chip>}
      </p>
    </Panel>
  );
}
