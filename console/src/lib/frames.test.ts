import { expect, test } from "vitest";
import { readFrame, withChange } from "./frames";
import type { Fleet, FleetNode } from "./types";

/** A picture as the hub writes it; the header is padded to a multiple of four, as floats need it. */
function picture(header: object, values: number[], states: number[]): ArrayBuffer {
  const written = new TextEncoder().encode(JSON.stringify(header));
  const length = Math.ceil(written.length / 4) * 4;
  const bytes = new Uint8Array(4 + length + 4 * values.length + states.length).fill(0x20);
  new DataView(bytes.buffer).setUint32(0, length, true);
  bytes.set(written, 4);
  new Float32Array(bytes.buffer, 4 + length, values.length).set(values);
  bytes.set(states, 4 + length + 4 * values.length);
  return bytes.buffer;
}
const node = (name: string): FleetNode => ({ name, pool: "", rack: null, domains: {}, expected_gpus: 8, gpus: [] });
const fleet = (edition: string, ...names: string[]): Fleet => ({
  version: "1",
  edition,
  nodes: names.map(node),
  workloads: null,
  teams: {},
});

test("a picture is read with a value and a state for each GPU", () => {
  const frame = readFrame(
    picture({ at: "now", colour: "sm_active", version: "7", count: 3 }, [1, 50.5, 100], [0, 4, 1]),
  );
  expect(frame).toMatchObject({ at: "now", colour: "sm_active", version: "7", count: 3 });
  expect([...frame.values]).toEqual([1, 50.5, 100]);
  expect([...frame.states]).toEqual([0, 4, 1]);
});

test("a GPU without a reading is not a number and never zero", () => {
  const [value] = readFrame(picture({ count: 1 }, [Number.NaN], [4])).values;
  expect(value).toBeNaN();
});

test("a picture of an empty fleet has no cell", () => {
  const frame = readFrame(picture({ count: 0 }, [], []));
  expect([frame.values.length, frame.states.length]).toEqual([0, 0]);
});

test("a picture that was cut off is refused instead of drawn", () => {
  const whole = picture({ count: 4 }, [1, 2, 3, 4], [0, 0, 0, 0]);
  expect(() => readFrame(whole.slice(0, whole.byteLength - 8))).toThrow(RangeError);
  expect(() => readFrame(new ArrayBuffer(2))).toThrow(RangeError);
});

test("news replaces the nodes that changed and takes the others by their place", () => {
  const changed = { ...node("b"), pool: "new" };
  const { nodes, ...rest } = fleet("2");
  const next = withChange(fleet("1", "a", "b", "c", "d"), { ...rest, nodes: [[0, 1], changed, [2, 4]] });
  expect(next.edition).toBe("2");
  expect(next.nodes.map((n) => n.name)).toEqual(["a", "b", "c", "d"]);
  expect(next.nodes[1].pool).toBe("new");
});

test("news of a node that is gone leaves it out", () => {
  const { nodes, ...rest } = fleet("2");
  expect(
    withChange(fleet("1", "a", "b", "c"), {
      ...rest,
      nodes: [
        [0, 1],
        [2, 3],
      ],
    }).nodes.map((n) => n.name),
  ).toEqual(["a", "c"]);
});
