// Messages of the live socket, decoded for pages: frames of the fleet, and changes.

import type { FleetChange, Frame } from "./live_types";
import type { Fleet } from "./types";

/**
 * A picture as web/fleet/frames.py writes it: the length of a JSON header, the header, a float and a state for each
 * GPU.
 */
export function readFrame(buffer: ArrayBuffer): Frame {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const values = new Float32Array(buffer, 4 + length, header.count);
  const states = new Uint8Array(buffer, 4 + length + 4 * header.count, header.count);
  return { ...header, values, states };
}

/** The fleet with what is new; nodes that are as before come as the place of the first and after the last of them. */
export function withChange(fleet: Fleet, change: Omit<FleetChange, "kind" | "since">): Fleet {
  const nodes = change.nodes.flatMap((part) => (Array.isArray(part) ? fleet.nodes.slice(part[0], part[1]) : [part]));
  return { ...change, nodes };
}
