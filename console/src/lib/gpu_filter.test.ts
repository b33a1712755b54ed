import { expect, test } from "vitest";
import { countLabelValues, parseFilter } from "./gpu_filter";
import type { Fleet, FleetNode, Gpu } from "./types";

const gpu: Gpu = { uuid: "GPU-1", index: 0, model: "NVIDIA H200", pci: "0000:01:00", workload: "research/llm-0" };
const node: FleetNode = {
  name: "n1",
  pool: "train",
  rack: "r07",
  domains: { leaf: "leaf 3" },
  expected_gpus: 2,
  gpus: [gpu, null],
};
const fleet: Fleet = { version: "1", edition: "1", nodes: [node], workloads: null, teams: { "research/llm-0": "nlp" } };
const fits = (q: string, one: Gpu | null = gpu, state?: number) => parseFilter(q, fleet)(node, one, state);

test("every word must fit, wherever it stands", () => {
  expect([fits("n1 h200"), fits("n1 a100"), fits("")]).toEqual([true, false, true]);
});

test("a label is asked alone, whatever its case", () => {
  expect([fits("team:NLP"), fits("team:n1"), fits("rack:r07"), fits("leaf:3"), fits("pool:train")]).toEqual([
    true,
    false,
    true,
    true,
    true,
  ]);
});

test("a minus turns a word round", () => {
  expect([fits("-rack:r07"), fits("-rack:r08"), fits("-a100 h200")]).toEqual([false, true, true]);
});

test("a state is found by its name and by its words, and unknown fits none", () => {
  expect([fits("state:held_idle", gpu, 5), fits("state:idle", gpu, 5), fits("state:ok", gpu)]).toEqual([
    true,
    true,
    false,
  ]);
});

test("a place where no GPU has reported is found by its node", () => {
  expect([fits("n1", null), fits("h200", null)]).toEqual([true, false]);
});

test("a label offers what there is, with how many GPUs have it", () => {
  expect([...countLabelValues("team", fleet)]).toEqual([["nlp", 1]]);
  expect([...countLabelValues("leaf", fleet)]).toEqual([["3", 2]]);
  expect(countLabelValues("state", fleet).has("throttled")).toBe(true);
});
