// States of a GPU, in the order of their numbers in a frame; each has a glyph as well as a colour.

import type { Frame } from "./live_types";
import type { Fleet } from "./types";

/** Why a node is out of service, such as `cordoned · repair INC-1`; undefined in service, or if it is unknown. */
export const outOfService = (frame: Frame | undefined, fleet: Fleet | undefined, node: string): string | undefined =>
  frame && frame.version === fleet?.version
    ? frame.out_of_service[fleet.nodes.findIndex((n) => n.name === node)]
    : undefined;

export const STATES = [
  { name: "ok", glyph: "", text: "healthy" },
  { name: "down", glyph: "✕", text: "down" },
  { name: "event", glyph: "◆", text: "active event" },
  { name: "throttled", glyph: "▲", text: "throttled" },
  { name: "silent", glyph: "–", text: "not reporting" },
  { name: "held_idle", glyph: "○", text: "allocated, idle" },
  { name: "unknown", glyph: "·", text: "unknown" },
  { name: "cordoned", glyph: "⊘", text: "on a cordoned node" },
] as const;
