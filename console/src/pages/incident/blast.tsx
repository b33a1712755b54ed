// The impact of an incident, and the history of its place.

import { useState } from "preact/hooks";
import pack from "../../../../watchkeeper/packs/console/incident.json";
import { Facts, Panel, Problem, Since, Skeleton } from "../../components/parts";
import { useAsk } from "../../lib/api";
import { ago, clock, count, dollars, many, words, workloadName } from "../../lib/format";
import type { History } from "../../lib/marks";
import { fill, jobOf, quoted } from "../../lib/promql";
import { to } from "../../lib/router";
import type { BlastRadius, Card, Detail, Incident, Place } from "../../lib/types";

const query = (expr: string, at: number) =>
  `/api/v1/query?${new URLSearchParams({ query: expr, time: String(at / 1000) })}`;

interface Vector {
  data: { result: { metric: Record<string, string>; value: [number, string] }[] };
}

const number = (answer?: Vector) => {
  const text = answer?.data.result[0]?.value[1];
  return text == null || text === "NaN" ? null : Number(text);
};

export function BlastPanel({ detail: { incident, blast }, price }: { detail: Detail; price: number }) {
  const places = new Set(incident.members.map((m) => m.place.gpu ?? m.place.node)).size;
  const opened = Date.parse(incident.opened_at);
  const jobs = [...new Set(incident.workloads.map(jobOf))].map((name) => name.replace(/[^\w-]/g, "."));
  const { answer } = useAsk<Vector>(
    jobs.length
      ? query(fill(pack.last_checkpoint, { jobs: quoted(jobs.join("|")), opened_at: opened / 1000 }), opened)
      : "",
  );
  const saved = number(answer);
  const there = addressOf(incident.place);
  // For a model or job whose GPUs are not reported, "no GPU" would be wrong.
  const known = blast && (blast.gpus > 0 || blast.hits.length > 0 || incident.place.node);
  return (
    <Panel title="Blast radius" hint={known ? `${dollars(blast.dollars_per_hour)} / h` : "unknown"} id="blast-panel">
      {!blast && <Problem>Impact unknown: the query engine did not answer.</Problem>}
      <Facts
        rows={[
          [
            "Place",
            there ? (
              <a href={there} data-testid="place">
                {incident.place_name}
              </a>
            ) : (
              incident.place_name
            ),
          ],
          [
            "GPUs",
            blast && !known
              ? "unknown: not reported"
              : blast && (
                  <>
                    {many(blast.gpus, "GPU")}
                    {blast.broken_gpus > 0 && blast.gpus > blast.broken_gpus && (
                      <small>
                        {count(blast.broken_gpus)} failed, {count(blast.gpus - blast.broken_gpus)} blocked
                      </small>
                    )}
                  </>
                ),
          ],
          ["Workloads", blast ? <Hits blast={blast} /> : incident.workloads.join(", ") || "none"],
          ["Teams", blast && (blast.teams.join(", ") || "none")],
          [
            "Last checkpoint",
            saved && (
              <>
                {clock(saved * 1000)} · {ago(opened - saved * 1000)} of work lost
              </>
            ),
          ],
          [
            "Cost",
            known && (
              <>
                {dollars(blast.dollars_per_hour)} / h · {dollars(blast.gpu_hours * price)}{" "}
                {incident.resolved_at ? "in total" : "so far"}
                <small>
                  {blast.gpu_hours.toFixed(1)} GPU-hours{incident.resolved_at ? "" : " so far"}
                </small>
              </>
            ),
          ],
          ["Signals", `${many(incident.members.length, "signal")} at ${many(places, "place")}`],
          ["Cause", words(incident.cause)],
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
export function BeforePanel({ incident }: { incident: Incident }) {
  const { gpu, node } = incident.place;
  const at = Math.floor(Date.parse(incident.opened_at) / 1000) * 1000;
  const { answer: history } = useAsk<History>(
    node ? `/api/history?node=${encodeURIComponent(node)}${gpu ? `&gpu=${encodeURIComponent(gpu)}` : ""}` : "",
    incident.state,
  );
  const { answer: known } = useAsk<{ incidents: Card[]; labels: Record<string, string> | null }>(
    gpu ? `/api/gpu/${encodeURIComponent(gpu)}` : "",
  );
  const { answer: own } = useAsk<Vector>(gpu ? query(fill(pack.replays, { gpu: quoted(gpu) }), at) : "");
  const { answer: peers } = useAsk<Vector>(
    gpu && node ? query(fill(pack.replays_of_peers, { node: quoted(node) }), at) : "",
  );
  if (!node) return null;
  const before = known?.incidents.filter((c) => c.id !== incident.id && c.opened_at < incident.opened_at);
  const again = before?.filter((c) => c.cause === incident.cause).length ?? 0;
  const seen = history?.counts.filter((c) => c.kind.endsWith("xid")).slice(0, 5);
  return (
    <Panel
      title={gpu ? "History of this GPU" : "History of this node"}
      hint={history && `${history.days} days`}
      id="before-panel"
    >
      {!history ? (
        <Skeleton lines={3} />
      ) : (
        <Facts
          rows={[
            ["Serial", known?.labels?.DCGM_FI_DEV_SERIAL],
            [
              "Xid",
              seen?.length
                ? seen.map((c) => (
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
              number(own) == null
                ? null
                : `${count(number(own))}${number(peers) == null ? "" : `, median of peers ${count(number(peers))}`}`,
            ],
            [
              "Incidents",
              before &&
                (before.length
                  ? before.slice(0, 4).map((c) => (
                      <a key={c.id} href={to.incident(c.id)}>
                        {c.id}{" "}
                      </a>
                    ))
                  : "none"),
            ],
            [
              "Recurrence",
              gpu &&
                before &&
                (again
                  ? `${again + 1} times with this cause: replace the GPU if validation fails`
                  : "first time with this cause"),
            ],
          ]}
        />
      )}
    </Panel>
  );
}

function Hits({ blast }: { blast: BlastRadius }) {
  const [all, showAll] = useState(false);
  const shown = all ? blast.hits : blast.hits.slice(0, 5);
  const rest = blast.hits.length - shown.length;
  if (!blast.hits.length) return <>none</>;
  return (
    <>
      {shown.map((h) => (
        <div key={h.workload} data-testid="hit">
          <a href={to.job(h.workload)}>{workloadName(h.workload)}</a>{" "}
          <span class="dim">{h.gpus == null ? "GPUs unknown" : many(h.gpus, "GPU")}</span>
        </div>
      ))}
      {rest > 0 && (
        <button type="button" class="plain" onClick={() => showAll(true)}>
          Show {rest} more
        </button>
      )}
    </>
  );
}

/** Where the page of a place is; empty for a place that has none. */
function addressOf({ gpu, node, domain }: Place): string {
  if (gpu) return to.gpu(gpu);
  if (node) return to.node(node);
  const [, kind, name] = /^(\w+)=(.+)$/.exec(domain ?? "") ?? [];
  if (["job", "pod", "hpc_job"].includes(kind)) return to.job(name);
  return ["rack", "leaf", "nvlink", "pool"].includes(kind) ? to.fleet(`${kind}:${name}`) : "";
}
