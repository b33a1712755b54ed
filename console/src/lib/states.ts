// States of a GPU, in the order of their numbers in a frame; each has a glyph as well as a colour.

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
