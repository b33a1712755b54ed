import { describe, expect, test } from "vitest";
import { anyOfRegex, fillTemplate, jobName, placeStrips, type QueryPlace } from "./promql";

const nowhere: QueryPlace = { cluster: "lab", node: null, gpu: null, domain: null };
const expr = (place: Partial<QueryPlace>, label: string, workloads: string[] = []) =>
  placeStrips({ ...nowhere, ...place }, workloads).find((strip) => strip.label === label)?.expr;

describe("the layers of a place", () => {
  test("those of a GPU are of its own readings", () => {
    expect(expr({ node: "n1", gpu: "GPU-1" }, "Power")).toBe('avg(DCGM_FI_DEV_POWER_USAGE{UUID="GPU-1"})');
  });

  test("those of a node are of all its GPUs and of its own ports", () => {
    expect(expr({ node: "n1.lab" }, "SM active")).toBe('100 * avg(DCGM_FI_PROF_SM_ACTIVE{Hostname="n1.lab"})');
    expect(expr({ node: "n1.lab" }, "Symbol errors")).toBe(
      '3600 * sum(rate(node_infiniband_symbol_error_total{instance=~"n1\\\\.lab(:.*)?"}[5m]))',
    );
  });

  test("a rack's GPUs are found over the nodes that are in it", () => {
    expect(expr({ domain: "rack=r07" }, "Temperature")).toBe(
      'max((DCGM_FI_DEV_GPU_TEMP and on (cluster, Hostname) watchkeeper_node_info{cluster="lab",rack="r07"}))',
    );
  });

  test("a pod's GPUs are found over the series that says who holds them", () => {
    expect(expr({ domain: "pod=lab/llm-0" }, "Power")).toBe(
      'avg((DCGM_FI_DEV_POWER_USAGE and on (UUID) watchkeeper_gpu_workload_info{namespace="lab",workload="llm-0"}))',
    );
  });

  test("a job has its steps, by all the names that it may have", () => {
    expect(expr({ domain: "job=llm" }, "Steps", ["research/llm-worker-3"])).toBe(
      'min(max by (job_name) (rate(training_iterations_total{job_name=~"llm|llm-worker-3"}[1m])))',
    );
  });

  test("without a node there are no ports and without a workload no steps", () => {
    const labels = placeStrips(nowhere).map((strip) => strip.label);
    expect(labels).toContain("NVLink");
    expect(labels).not.toContain("InfiniBand");
    expect(labels).not.toContain("Steps");
  });

  test("nothing of a name is taken for a placeholder or for PromQL", () => {
    expect(expr({ gpu: '$node"} or up{a="' }, "Power")).toBe(
      'avg(DCGM_FI_DEV_POWER_USAGE{UUID="$node\\"} or up{a=\\""})',
    );
  });
});

test("a value is put in wherever its name stands", () => {
  expect(fillTemplate("$a + $b / $a", { a: 1, b: '"x"' })).toBe('1 + "x" / 1');
});

test("texts with signs of regular expressions are matched as they are", () => {
  expect(anyOfRegex(["a.b", "c|d"])).toBe('"a\\\\.b|c\\\\|d"');
});

test("the pods of one job have the name of their job", () => {
  expect(["research/llm-70b-worker-3", "llm-70b-0", "llm"].map(jobName)).toEqual(["llm-70b", "llm-70b", "llm"]);
});
