import { expect, test } from "vitest";
import { duration, milliseconds, promqlDuration, wholeUnits } from "./durations";

test("a duration has the unit that fits it, and an unknown one says so", () => {
  expect([null, 0, 0.25, 2.345, 89, 90, 7200].map(duration)).toEqual([
    "unknown",
    "0 ms",
    "250 ms",
    "2.35 s",
    "89 s",
    "2 min",
    "2 h",
  ]);
});

test("a setting is shown in the largest unit that it is a whole number of", () => {
  expect([0, 45, 90, 300, 7200, 5400].map(wholeUnits)).toEqual(["0 s", "45 s", "90 s", "5 min", "2 h", "90 min"]);
});

test("a duration of PromQL is written in minutes where they are whole", () => {
  expect([0, 45, 300].map(promqlDuration)).toEqual(["0m", "45s", "5m"]);
});

test("a duration of PromQL is read with all its parts", () => {
  expect(milliseconds("28d")).toBe(28 * 86_400_000);
  expect(milliseconds("1h30m")).toBe(5_400_000);
  expect(milliseconds("")).toBe(0);
});
