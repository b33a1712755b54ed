// Details of one link: state, counters and charts of the last hour.

import { Chip, Facts, MarkedText, Panel, Problem, Skeleton, Time } from "../../components/parts";
import { Strips } from "../../components/strips";
import { Export } from "../../components/table";
import { useRequest } from "../../lib/api";
import { count, percentOf, plural } from "../../lib/format";
import { setParams, to } from "../../lib/router";
import { now, useHub } from "../../lib/store";
import {
  formatRate,
  formatTimes,
  Jobs,
  linkGlyph,
  linkName,
  linkTone,
  type Port,
  stateText,
  switchPort,
} from "./labels";

export function LinkPanel({ id, window, theme, beat }: { id: string; window: string; theme: string; beat: number }) {
  const { answer, problem } = useRequest<Port>(`/api/fabric/port?${new URLSearchParams({ window, id })}`, beat);
  const { status } = useHub();
  const close = (
    <button
      type="button"
      onClick={() => setParams({ link: null })}
      data-testid="link-close"
      aria-label="Close this link"
    >
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
  const increased = counters.filter((c) => c.grown >= 0.5);
  const unchangedCount = counters.length - increased.length;
  const end = Math.floor(now() / 15000) * 15000;
  const actionableCounter = counters.find((c) => c.grown >= 0.5 && c.action);
  return (
    <Panel title={linkName(link)} hint={switchPort(link) ?? "switch unknown"} side={close} id="link-panel">
      <Facts
        rows={[
          [
            "State",
            <MarkedText tone={linkTone(link)} glyph={linkGlyph(link)}>
              {stateText(link)}
              {link.why && ` · ${link.why}`}
              {link.down_since && (
                <>
                  {" "}
                  since <Time at={link.down_since} full />
                </>
              )}
            </MarkedText>,
          ],
          ["Rate", formatRate(link.gbps)],
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
              ? "unknown: this link has no congestion counter"
              : `send wait ${formatTimes(link.wait_times)} the median of similar links`,
          ],
          ["Discards", link.discards == null ? null : `${count(Math.round(link.discards))} in ${window}`],
          [
            "Jobs",
            <>
              <Jobs names={link.jobs} most={8} trunk={link.kind === "trunk"} />
              {link.kind === "trunk" && link.jobs.length > 0 && (
                <small class="plain">
                  jobs with nodes on this leaf and on other leaves; routing decides which trunk they use
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
              : "none open",
          ],
        ]}
      />
      {actionableCounter?.action && linkTone(link) !== "ok" && (
        <p class="next">
          <b>Next</b> {actionableCounter.action}
        </p>
      )}
      <h2 class="gap">
        Counters <span class="hint">increase in {window}</span>
      </h2>
      {counters.length === 0 ? (
        <p class="dim">No counter of this link has been reported.</p>
      ) : increased.length === 0 ? (
        <p class="dim">{plural(counters.length, "counter")}, none increased.</p>
      ) : (
        <table class="facts counters" data-testid="counters">
          <tbody>
            {increased.map((c) => (
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
      {increased.length > 0 && (
        <p class="foot-line">
          <Export
            id="counters"
            columns={[
              { title: "counter", value: (c) => c.name },
              { title: "grown", value: (c) => c.grown },
              { title: "meaning", value: (c) => c.meaning },
            ]}
            rows={increased}
          />
        </p>
      )}
      {increased.length > 0 && unchangedCount > 0 && (
        <p class="dim small">{plural(unchangedCount, "other counter")} did not increase.</p>
      )}
      <h2 class="gap">Last hour</h2>
      {status && (
        <Strips
          id="link-strips"
          omitsEmpty
          name={`Traffic, errors and congestion of ${id}`}
          band={52}
          theme={theme}
          start={end - 3600000}
          end={end}
          marks={link.down_since ? [{ at: link.down_since, label: "down", tone: "bad" }] : []}
          strips={[
            { label: "Traffic", unit: "B/s", expr: series.traffic },
            { label: "Errors, 5 min", unit: "", expr: series.errors, tone: "bad" },
            { label: "Congestion", unit: "ticks/s", expr: series.wait, tone: "warn" },
          ]}
        />
      )}
      <p class="chips">
        <a class="chip" href={to.explore(series.traffic)}>
          Open traffic in Explore
        </a>
        {link.kind === "host" && <Chip title="device name on the node">{link.device}</Chip>}
      </p>
    </Panel>
  );
}
