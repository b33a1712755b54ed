// PromQL expressions of the console; each works on any Prometheus with dcgm-exporter's names. The expressions are data,
// in watchkeeper/packs/console, with `$name` where a value comes in; tests/house parses every one of them.

import fleet from "../../../watchkeeper/packs/console/fleet.json";
import pack from "../../../watchkeeper/packs/console/layers.json";
import type { Strip } from "./lines";
import type { Place } from "./types";

export const FLEET_STRIPS = fleet as Strip[];

type Values = Record<string, string | number>;
const PLACEHOLDER = /\$(\w+)/g;
/** A text as PromQL writes it. */
export const quoted = (text: string): string => JSON.stringify(text);
/** Any of these texts, each as it is, as a regular expression in quotes. */
export const anyOfRegex = (texts: string[]): string =>
  quoted(texts.map((t) => t.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|"));
export const fillTemplate = (template: string, values: Values): string =>
  template.replace(PLACEHOLDER, (_, name) => String(values[name]));
export const fillStrips = (strips: Strip[], values: Values): Strip[] =>
  strips.map((strip) => ({ ...strip, expr: fillTemplate(strip.expr, values) }));
const isComplete = (template: string, values: Values) =>
  [...template.matchAll(PLACEHOLDER)].every(([, name]) => name in values);

/** The job's own name: a pod `research/llm-70b-worker-3` belongs to the job `llm-70b`. */
export const jobName = (workload: string) =>
  workload.replace(/^.*\//, "").replace(/-(worker|master|launcher|rank|server)?-?\d+$/, "");
const splitDomain = (domain: string): [string, string] => {
  const at = domain.indexOf("=");
  return [domain.slice(0, at), domain.slice(at + 1)];
};

/** What names a place in a query. */
export type QueryPlace = Pick<Place, "cluster" | "node" | "gpu" | "domain">;

/** All layers of one place: what the hardware does, what its links carry, and what the work on it achieves. */
export function placeStrips(place: QueryPlace, workloads: string[] = []): Strip[] {
  const values = templateValues(place, workloads);
  const readings = metricTemplate(place);
  return Object.entries(pack.strips as Record<string, Strip[]>).flatMap(([group, strips]) =>
    strips.flatMap((strip) => {
      const expr = strip.expr.replace(/\$of\((\w+)\)/g, (_, metric) => readings.replace("$metric", metric));
      return isComplete(expr, values) ? { ...strip, group, expr: fillTemplate(expr, values) } : [];
    }),
  );
}

/**
 * A metric of the GPUs of a place. What spans nodes has no label of its own in the readings: another series has its
 * GPUs.
 */
function metricTemplate(place: QueryPlace): string {
  if (place.gpu) return pack.places.gpu;
  if (place.node) return pack.places.node;
  if (!place.domain) return pack.places.all;
  const [kind] = splitDomain(place.domain);
  return kind === "job" || kind === "pod" || kind === "hpc_job" ? pack.places[kind] : pack.places.domain;
}

/**
 * Without a node there is no `instance`, without a workload there are no `jobs`: strips that need them are omitted.
 */
function templateValues({ cluster, node, gpu, domain }: QueryPlace, workloads: string[]): Values {
  const [kind, name] = splitDomain(domain ?? "");
  const [namespace, workload] = name.includes("/") ? name.split("/") : ["", name];
  const jobDomains = kind === "job" || kind === "model" ? [name] : [];
  const jobs = [...new Set([...jobDomains, ...workloads.flatMap((w) => [w.replace(/^.*\//, ""), jobName(w)])])];
  const values: Values = {
    cluster: quoted(cluster),
    kind: kind.replace(/\W/g, "_"),
    name: quoted(name),
    namespace: quoted(namespace),
    workload: quoted(workload),
  };
  if (gpu) values.gpu = quoted(gpu);
  if (node) values.node = quoted(node);
  if (node) values.instance = quoted(`${node.replace(/[.]/g, "\\$&")}(:.*)?`);
  if (jobs.length) values.jobs = anyOfRegex(jobs);
  return values;
}
