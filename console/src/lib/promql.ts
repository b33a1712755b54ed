// PromQL expressions of the console; they work on any Prometheus with dcgm-exporter. The expressions are data in
// watchkeeper/packs/console, with `$name` as the placeholder of a value; tests/house parses all of them.

import fleet from "../../../watchkeeper/packs/console/fleet.json";
import pack from "../../../watchkeeper/packs/console/layers.json";
import type { Strip } from "./lines";
import type { Place } from "./types";

export const FLEET_STRIPS = fleet as Strip[];

type Values = Record<string, string | number>;
const PLACEHOLDER = /\$(\w+)/g;
/** A PromQL string literal. */
export const quoted = (text: string): string => JSON.stringify(text);
/** A quoted regular expression that matches any of these texts literally. */
export const anyOfRegex = (texts: string[]): string =>
  quoted(texts.map((t) => t.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|"));
export const fillTemplate = (template: string, values: Values): string =>
  template.replace(PLACEHOLDER, (_, name) => String(values[name]));
export const fillStrips = (strips: Strip[], values: Values): Strip[] =>
  strips.map((strip) => ({ ...strip, expr: fillTemplate(strip.expr, values) }));
const isComplete = (template: string, values: Values) =>
  [...template.matchAll(PLACEHOLDER)].every(([, name]) => name in values);

/** The name of the job of a workload: the pod `research/llm-70b-worker-3` belongs to the job `llm-70b`. */
export const jobName = (workload: string) =>
  workload.replace(/^.*\//, "").replace(/-(worker|master|launcher|rank|server)?-?\d+$/, "");
const splitDomain = (domain: string): [string, string] => {
  const at = domain.indexOf("=");
  return [domain.slice(0, at), domain.slice(at + 1)];
};

/** The fields that select a place in a query. */
export type QueryPlace = Pick<Place, "cluster" | "node" | "gpu" | "domain">;

/** The strips of a place: hardware, fabric and workload. */
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
 * The template that selects the samples of the GPUs of a place. A place of several nodes has no label in these samples:
 * the template joins another series with its GPUs.
 */
function metricTemplate(place: QueryPlace): string {
  if (place.gpu) return pack.places.gpu;
  if (place.node) return pack.places.node;
  if (!place.domain) return pack.places.all;
  const [kind] = splitDomain(place.domain);
  return kind === "job" || kind === "pod" || kind === "hpc_job" ? pack.places[kind] : pack.places.domain;
}

/** The values of placeholders. `instance` needs a node, `jobs` a workload; strips that lack a value are omitted. */
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
