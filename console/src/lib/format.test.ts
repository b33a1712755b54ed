import { describe, expect, test } from "vitest";
import {
  axisLabel,
  count,
  dateTime,
  dollars,
  humanise,
  money,
  percent,
  percentOf,
  plural,
  quantity,
  sharePercent,
  shortDuration,
  timeOfDay,
  timeZone,
  utcTime,
  watts,
  workloadName,
} from "./format";

describe("numbers", () => {
  test("what is unknown is said and never shown as 0", () => {
    for (const write of [count, percent, percentOf, watts, dollars, money]) {
      expect(write(null)).toBe("unknown");
      expect(write(undefined)).toBe("unknown");
    }
    expect(sharePercent(null)).toBe("unknown");
    expect(quantity(null, "W")).toBe("no reading");
    expect(quantity(Number.NaN, "W")).toBe("no reading");
  });

  test("zero is a reading", () => {
    expect([count(0), percent(0), watts(0), dollars(0), quantity(0, "W")]).toEqual(["0", "0 %", "0 W", "$ 0", "0 W"]);
  });

  test("large counts are grouped and one thing has no plural", () => {
    expect(count(1234567)).toBe("1,234,567");
    expect([plural(0, "GPU"), plural(1, "GPU"), plural(2, "GPU")]).toEqual(["0 GPUs", "1 GPU", "2 GPUs"]);
  });

  test("a small percentage keeps its digit and a whole or large one has none", () => {
    expect([percent(3.14), percent(3.0), percent(9.94), percent(12.3)]).toEqual(["3.1 %", "3 %", "9.9 %", "12 %"]);
    expect(percentOf(0.25)).toBe("25 %");
  });

  test("a share near one shows the digits after its nines", () => {
    expect([sharePercent(0.99987), sharePercent(0.5), sharePercent(1)]).toEqual(["99.987 %", "50 %", "100 %"]);
  });
});

describe("units", () => {
  test("power climbs from watts to megawatts", () => {
    expect([watts(712), watts(7_120), watts(7_120_000)]).toEqual(["712 W", "7.1 kW", "7.12 MW"]);
  });

  test("a quantity has a digit where it is small and not whole", () => {
    expect([quantity(71.25, "°C"), quantity(71, "°C"), quantity(712.5, "W")]).toEqual(["71.3 °C", "71 °C", "713 W"]);
    expect(quantity(5, "")).toBe("5");
  });

  test("bytes per second have the largest prefix that fits", () => {
    expect([quantity(900, "B/s"), quantity(2.5e6, "B/s"), quantity(3e9, "B/s")]).toEqual([
      "0.9 kB/s",
      "2.5 MB/s",
      "3.0 GB/s",
    ]);
  });
});

describe("money", () => {
  test("few dollars have cents and many have none", () => {
    expect([dollars(2.5), dollars(-2.5), dollars(12.5), dollars(12345)]).toEqual([
      "$ 2.50",
      "$ -2.50",
      "$ 13",
      "$ 12,345",
    ]);
  });

  test("another currency stands by its name and a missing price is said as the page says it", () => {
    expect(money(1234.4, "EUR")).toBe("EUR 1,234");
    expect(money(12.4, "USD")).toBe("$ 12");
    expect(money(null, "EUR", "no price")).toBe("no price");
  });
});

describe("times", () => {
  test("a moment is local on the page and UTC beside it", () => {
    expect(timeOfDay("2026-11-18T20:05:09.042Z")).toBe("21:05:09");
    expect(timeOfDay("2026-11-18T20:05:09.042Z", true)).toBe("21:05:09.042");
    expect(dateTime("2026-11-18T23:05:09Z")).toBe("2026-11-19 00:05:09");
    expect(utcTime("2026-11-18T20:05:09.042Z")).toBe("2026-11-18 20:05:09 UTC");
  });

  test("the hour of summer time is in the clock", () => {
    expect(timeOfDay("2026-07-01T12:00:00Z")).toBe("14:00:00");
  });

  test("the zone is named by its distance from UTC", () => {
    expect(["UTC+1", "UTC+2"]).toContain(timeZone());
  });

  test("how long ago has one unit and is never negative", () => {
    const second = 1000;
    const hour = 3600 * second;
    expect([shortDuration(-5 * second), shortDuration(89 * second), shortDuration(90 * second)]).toEqual([
      "0 s",
      "89 s",
      "2 min",
    ]);
    expect([
      shortDuration(1.4 * hour),
      shortDuration(1.6 * hour),
      shortDuration(35 * hour),
      shortDuration(36 * hour),
    ]).toEqual(["84 min", "2 h", "35 h", "2 d"]);
  });
});

describe("levels of an axis", () => {
  test("a level is short enough for 50 pixels", () => {
    expect([
      axisLabel(0, "W"),
      axisLabel(9999, "W"),
      axisLabel(12_345, "W"),
      axisLabel(2.5e6, "B/s"),
      axisLabel(3e9, "B/s"),
    ]).toEqual(["0", "10000", "12.3k", "2.5M", "3G"]);
    expect(axisLabel(-2e12, "B/s")).toBe("-2T");
  });

  test("percent has its sign and times have no prefix", () => {
    expect([axisLabel(50, "%"), axisLabel(20_000, "×")]).toEqual(["50 %", "20000"]);
  });
});

describe("names", () => {
  test("an identifier becomes words", () => {
    expect(humanise("incident.gpu_fell_off_bus")).toBe("gpu fell off bus");
  });

  test("a number alone is a job and a name stays as it is", () => {
    expect(["4711", "4711_3", "research/llm-70b"].map(workloadName)).toEqual([
      "job 4711",
      "job 4711_3",
      "research/llm-70b",
    ]);
  });
});
