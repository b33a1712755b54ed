// Decodes messages of the live socket: frames and changes of the fleet.

import type { FleetChange, Frame } from "./live_types";
import type { Fleet } from "./types";

/** Decode a frame of web/fleet/frames.py: the length of a JSON header, the header, a float and a state per GPU. */
export function readFrame(buffer: ArrayBuffer): Frame {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const values = new Float32Array(buffer, 4 + length, header.count);
  const states = new Uint8Array(buffer, 4 + length + 4 * header.count, header.count);
  return { ...header, values, states };
}

/** Apply a change to the fleet; unchanged nodes are sent as a range of indexes in the old list. */
export function withChange(fleet: Fleet, change: Omit<FleetChange, "kind" | "since">): Fleet {
  const nodes = change.nodes.flatMap((part) => (Array.isArray(part) ? fleet.nodes.slice(part[0], part[1]) : [part]));
  return { ...change, nodes };
}
