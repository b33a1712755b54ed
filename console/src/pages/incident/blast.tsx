// The impact of an incident, and the history of its place.

import { useState } from "preact/hooks";
import pack from "../../../../watchkeeper/packs/console/incident.json";
import { Facts, Panel, Problem, Since, Skeleton } from "../../components/parts";
import { useRequest } from "../../lib/api";
import { count, humanise, money, plural, shortDuration, timeOfDay, workloadName } from "../../lib/format";
import { type History, historyLength } from "../../lib/marks";
import { fillTemplate, jobName, quoted } from "../../lib/promql";
import { to } from "../../lib/router";
import type { BlastRadius, Card, Detail, Incident, Place } from "../../lib/types";

const queryPath = (expr: string, at: number) =>
  `/api/v1/query?${new URLSearchParams({ query: expr, time: String(at / 1000) })}`;

interface Vector {
  data: { result: { metric: Record<string, string>; value: [number, string] }[] };
}

const firstValue = (answer?: Vector) => {
  const text = answer?.data.result[0]?.value[1];
  return text == null || text === "NaN" ? null : Number(text);
};

export function BlastPanel({ detail: { incident, blast } }: { detail: Detail }) {
  const places = new Set(incident.members.map((m) => m.place.gpu ?? m.place.node)).size;
  const opened = Date.parse(incident.opened_at);
  const jobs = [...new Set(incident.workloads.map(jobName))].map((name) => name.replace(/[^\w-]/g, "."));
  const { answer } = useRequest<Vector>(
    jobs.length
      ? queryPath(
          fillTemplate(pack.last_checkpoint, { jobs: quoted(jobs.join("|")), opened_at: opened / 1000 }),
          opened,
        )
      : "",
  );
  const checkpointSeconds = firstValue(answer);
  const placePath = pathOfPlace(incident.place);
  // For a model or job whose GPUs are not reported, "no GPU" would be wrong.
  const isKnown = blast && !blast.hits.some((h) => h.stopped) && (blast.hits.length > 0 || incident.place.node);
  const impact = blast && (blast.gpus > 0 || isKnown);
  return (
    <Panel
      title="Blast radius"
      hint={impact ? `${money(blast.dollars_per_hour, blast.currency)} / h` : "unknown"}
      id="blast-panel"
    >
      {!blast && <Problem>Impact unknown: the query engine did not answer.</Problem>}
      <Facts
        rows={[
          [
            "Place",
            placePath ? (
              <a href={placePath} data-testid="place">
                {incident.place_name}
              </a>
            ) : (
              incident.place_name
            ),
          ],
          [
            "GPUs",
            blast && !impact
              ? "unknown: not reported"
              : blast && (
                  <>
                    {blast.gpus > 0 || blast.counted_in.length > 0
                      ? `${plural(blast.gpus, "GPU")} without work`
                      : "none lost, idle or waiting"}
                    {blast.broken_gpus > 0 && blast.gpus > blast.broken_gpus && (
                      <small>
                        {count(blast.broken_gpus)} lost, {count(blast.gpus - blast.broken_gpus)} idle or waiting
                      </small>
                    )}
                  </>
                ),
          ],
          ["Workloads", blast ? <BlockedWorkloads blast={blast} /> : incident.workloads.join(", ") || "none"],
          ["Teams", blast && (blast.teams.join(", ") || "none")],
          [
            "Last checkpoint",
            checkpointSeconds && (
              <>
                {timeOfDay(checkpointSeconds * 1000)} · {shortDuration(opened - checkpointSeconds * 1000)} of work lost
              </>
            ),
          ],
          [
            "Cost",
            impact && (
              <>
                {money(blast.dollars_per_hour, blast.currency)} / h · {money(blast.cost_so_far, blast.currency)}{" "}
                {incident.resolved_at ? "in total" : "so far"}
                <small>
                  {blast.gpu_hours.toFixed(1)} GPU-hours{incident.resolved_at ? "" : " so far"}
                  {blast.counted_in.length > 0 && `, the rest counts in ${blast.counted_in.join(", ")}`}
                </small>
              </>
            ),
          ],
          ["Signals", `${plural(incident.members.length, "signal")} at ${plural(places, "place")}`],
          ["Cause", humanise(incident.cause)],
          [
            "Job stopped by",
            incident.root && (
              <a href={to.incident(incident.root)} data-testid="root">
                {incident.root}
              </a>
            ),
          ],
          [
            "Part of",
            incident.part_of && (
              <a href={to.incident(incident.part_of)} data-testid="part-of">
                {incident.part_of}
              </a>
            ),
          ],
        ]}
      />
    </Panel>
  );
}

/** Earlier events and incidents of the place, and its PCIe replays compared with its peers. */
export function RecurrencePanel({ incident }: { incident: Incident }) {
  const { gpu, node } = incident.place;
  const at = Math.floor(Date.parse(incident.opened_at) / 1000) * 1000;
  const { answer: history } = useRequest<History>(
    node ? `/api/history?node=${encodeURIComponent(node)}${gpu ? `&gpu=${encodeURIComponent(gpu)}` : ""}` : "",
    incident.state,
  );
  const { answer: gpuAnswer } = useRequest<{ incidents: Card[]; labels: Record<string, string> | null }>(
    gpu ? `/api/gpu/${encodeURIComponent(gpu)}` : "",
  );
  const { answer: replays } = useRequest<Vector>(
    gpu ? queryPath(fillTemplate(pack.replays, { gpu: quoted(gpu) }), at) : "",
  );
  const { answer: peerReplays } = useRequest<Vector>(
    gpu && node ? queryPath(fillTemplate(pack.replays_of_peers, { node: quoted(node) }), at) : "",
  );
  if (!node) return null;
  const earlier = gpuAnswer?.incidents.filter((c) => c.id !== incident.id && c.opened_at < incident.opened_at);
  const sameCauseCount = earlier?.filter((c) => c.cause === incident.cause).length ?? 0;
  const xids = history?.counts.filter((c) => c.kind.endsWith("xid")).slice(0, 5);
  return (
    <Panel
      title={gpu ? "History of this GPU" : "History of this node"}
      hint={history && historyLength(history)}
      id="before-panel"
    >
      {!history ? (
        <Skeleton lines={3} />
      ) : (
        <Facts
          rows={[
            ["Serial", gpuAnswer?.labels?.DCGM_FI_DEV_SERIAL],
            [
              "Xid",
              xids?.length
                ? xids.map((c) => (
                    <div key={`${c.kind}${c.code}`}>
                      {c.code} ×{count(c.events)}{" "}
                      <span class="dim">
                        {c.meaning} · <Since at={c.newest} />
                      </span>
                    </div>
                  ))
                : "none",
            ],
            [
              "PCIe replays",
              firstValue(replays) == null
                ? null
                : count(firstValue(replays)) +
                  (firstValue(peerReplays) == null ? "" : `, median of peers ${count(firstValue(peerReplays))}`),
            ],
            [
              "Incidents",
              earlier &&
                (earlier.length
                  ? earlier.slice(0, 4).map((c) => (
                      <a key={c.id} href={to.incident(c.id)}>
                        {c.id}{" "}
                      </a>
                    ))
                  : "none"),
            ],
            [
              "Recurrence",
              gpu &&
                earlier &&
                (sameCauseCount
                  ? `${sameCauseCount + 1} times with this cause: replace the GPU if validation fails`
                  : "first time with this cause"),
            ],
          ]}
        />
      )}
    </Panel>
  );
}

function BlockedWorkloads({ blast }: { blast: BlastRadius }) {
  const [isExpanded, setExpanded] = useState(false);
  const shown = isExpanded ? blast.hits : blast.hits.slice(0, 5);
  const hiddenCount = blast.hits.length - shown.length;
  if (!blast.hits.length) return <>none</>;
  return (
    <>
      {shown.map((h) => (
        <div key={h.workload} data-testid="hit">
          <a href={to.job(h.workload)}>{workloadName(h.workload)}</a>{" "}
          <span class="dim">
            {h.gpus == null ? "GPUs unknown" : plural(h.gpus, "GPU")}
            {h.stopped && ", stopped"}
          </span>
        </div>
      ))}
      {hiddenCount > 0 && (
        <button type="button" class="plain" onClick={() => setExpanded(true)}>
          Show {hiddenCount} more
        </button>
      )}
    </>
  );
}

/** The path of the page of a place; empty if it has no page. */
function pathOfPlace({ gpu, node, domain }: Place): string {
  if (gpu) return to.gpu(gpu);
  if (node) return to.node(node);
  const [, kind, name] = /^(\w+)=(.+)$/.exec(domain ?? "") ?? [];
  if (["job", "pod", "hpc_job"].includes(kind)) return to.job(name);
  return ["rack", "leaf", "nvlink", "pool"].includes(kind) ? to.fleet(`${kind}:${name}`) : "";
}
