// The fleet page: key figures, the map or list, the last hour, and open incidents.

import { useEffect, useMemo } from "preact/hooks";
import { Empty, IncidentCard, Panel, Skeleton } from "../../components/parts";
import { Strips } from "../../components/strips";
import { count, countAtLeast, countOfTotal, money, plural, timeOfDay, utcTime } from "../../lib/format";
import { chooseColour } from "../../lib/live";
import type { Summary } from "../../lib/live_types";
import { cardMarks } from "../../lib/marks";
import { FLEET_STRIPS } from "../../lib/promql";
import { type PageProps, param, rangeMs } from "../../lib/router";
import { now, useHub } from "../../lib/store";
import { MapPanel } from "./map";
import { GROUPS } from "./paint";
import { Tiles } from "./tiles";

export function reportingCount({ gpu_states: { gpus, down, not_reporting } }: Summary): string {
  const missing = down + not_reporting;
  return missing ? `${count(gpus - missing)} of ${plural(gpus, "GPU")}` : plural(gpus, "GPU");
}

/** What reports while no incident is open. */
function describeReporting(s?: Summary): string {
  if (!s) return "Waiting for the first update";
  if (!s.gpus) return "No GPU has reported yet";
  return `${reportingCount(s)} on ${countOfTotal(s.nodes_reporting, s.nodes)} nodes reporting`;
}

export function FleetPage({ address, theme }: PageProps) {
  const { status, fleet, frame, open, openTotal, closed } = useHub();
  const openCount = openTotal && countAtLeast(openTotal.incidents, openTotal.hasMore);
  const price = status?.dollars_per_gpu_hour;
  const chosen = param(address, "colour", "sm_active");
  const q = param(address, "q");
  useEffect(() => chooseColour(chosen in GROUPS ? "sm_active" : chosen), [chosen]);
  const end = Math.floor(now() / 15000) * 15000;
  const marks = useMemo(() => cardMarks([...(open ?? []), ...(closed ?? [])]), [open, closed]);
  return (
    <main class="columns answers">
      <div>
        <Tiles
          s={frame?.summary}
          open={open}
          openCount={openCount}
          hourly={(gpus) => money(price == null ? null : gpus * price, status?.currency)}
        />
        <MapPanel {...{ address, theme, chosen, q, status, fleet, frame }} />
        {/* Below the map: it appears after the map has its height, so that nothing on the screen moves. */}
        {fleet && status && (
          <Panel title="Utilisation" hint="allocated, SM active, power · marked: incidents" id="now-panel">
            {frame ? (
              <Strips
                id="now"
                name="Share of GPUs allocated and active, and power"
                strips={FLEET_STRIPS}
                start={end - rangeMs(address)}
                end={end}
                marks={marks}
                theme={theme}
                band={38}
              />
            ) : (
              <Skeleton height={190} />
            )}
          </Panel>
        )}
      </div>
      <aside>
        <Panel title="Open incidents" hint={openCount} id="open-incidents">
          {!open ? (
            <Skeleton lines={5} />
          ) : open.length === 0 ? (
            <Empty title="No open incidents">
              {describeReporting(frame?.summary)}
              {frame && (
                <>
                  , last update at <time title={utcTime(frame.at)}>{timeOfDay(frame.at)}</time>
                </>
              )}
              .
            </Empty>
          ) : (
            open.slice(0, 20).map((card) => <IncidentCard card={card} key={card.id} />)
          )}
          {open && openTotal && openTotal.incidents > 20 && (
            <p class="closed-too">
              <a href="/incidents">20 of {openCount} incidents are shown</a>
            </p>
          )}
          {open && open.length > 3 && (
            <p class="narrow-only">
              <a href="/incidents">All {openCount} open incidents</a>
            </p>
          )}
          {closed && closed.length > 0 && (
            <div class="closed-too">
              <h2 class="gap">Recently resolved</h2>
              {closed.map((card) => (
                <IncidentCard card={card} key={card.id} />
              ))}
            </div>
          )}
        </Panel>
      </aside>
    </main>
  );
}
