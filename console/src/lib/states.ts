// What a GPU can be, in the order of the numbers in a picture of the fleet; state is a shape before it is a colour.

export const STATES = [
  { name: "ok", glyph: "", text: "healthy" },
  { name: "down", glyph: "✕", text: "down" },
  { name: "event", glyph: "◆", text: "event open" },
  { name: "throttled", glyph: "▲", text: "throttled" },
  { name: "silent", glyph: "–", text: "not reporting" },
  { name: "held_idle", glyph: "○", text: "held, idle" },
  { name: "unknown", glyph: "·", text: "unknown" },
] as const;
