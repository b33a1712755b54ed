import { describe, expect, test } from "vitest";
import { bandScale, sharedScale, timeLabel } from "./axes";

/** Where a value lies between the bottom (0) and the top (1) of a scale. */
const height = ([bottom, top]: [number, number], value: number) => (value - bottom) / (top - bottom);

describe("one scale for all lines", () => {
  test("it begins at zero and leaves air above", () => {
    const scale = sharedScale(10, 100);
    expect(scale[0]).toBeCloseTo(0);
    expect(scale[1]).toBeCloseTo(108);
  });

  test("values that lie close together far above zero fill it", () => {
    const scale = sharedScale(90, 100);
    expect(scale).toEqual([87, 101.5]);
  });

  test("without any value it is a scale all the same", () => {
    const [bottom, top] = sharedScale(null, null);
    expect(bottom).toBeCloseTo(0);
    expect(top).toBeGreaterThan(0);
  });

  test.each([0, 5, -5])("a single value, %d, lies inside it", (value) => {
    const [bottom, top] = sharedScale(value, value);
    expect(bottom).toBeLessThanOrEqual(value);
    expect(top).toBeGreaterThan(value);
  });
});

describe("bands below each other", () => {
  test("each line keeps to its own band, the first on top", () => {
    for (let band = 0; band < 3; band++) {
      const scale = bandScale(0, 50, band, 3);
      const [low, high] = [height(scale, 0), height(scale, 50)];
      expect(low).toBeGreaterThan((2 - band) / 3);
      expect(high).toBeLessThan((3 - band) / 3);
      expect(high - low).toBeCloseTo(0.72 / 3);
    }
  });

  test("a line that hardly moves is drawn large enough to see it move", () => {
    const scale = bandScale(700, 720, 0, 1);
    expect(height(scale, 720) - height(scale, 700)).toBeGreaterThan(0.4);
  });

  test("a line that never moves and one without values have a scale", () => {
    for (const scale of [bandScale(5, 5, 0, 1), bandScale(0, 0, 0, 1), bandScale(null, null, 1, 2)]) {
      expect(Number.isFinite(scale[0]) && Number.isFinite(scale[1])).toBe(true);
      expect(scale[1]).toBeGreaterThan(scale[0]);
    }
    expect(height(bandScale(5, 5, 0, 1), 5)).toBeLessThan(1);
  });

  test("what is below zero stays in its band", () => {
    const scale = bandScale(-10, 10, 1, 2);
    expect(height(scale, -10)).toBeGreaterThan(0);
    expect(height(scale, 10)).toBeLessThan(0.5);
  });
});

describe("times below a chart", () => {
  const at = Date.parse("2026-11-18T20:05:00Z") / 1000;
  const hour = { start: at, end: at + 3600 };

  test("a whole minute has no seconds and any other moment has", () => {
    expect(timeLabel(at, 100, 500, hour)).toBe("21:05");
    expect(timeLabel(at + 40, 100, 500, hour)).toBe("21:05:40");
  });

  test("where days pass the day stands", () => {
    expect(timeLabel(at, 100, 500, { start: at, end: at + 7 * 86400 })).toBe("11-18");
  });

  test("a label that an edge would cut off is omitted", () => {
    expect([timeLabel(at, 10, 500, hour), timeLabel(at, 490, 500, hour)]).toEqual(["", ""]);
  });
});
