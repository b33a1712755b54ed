// Summary tiles of a bill.

import { Tile } from "../../components/parts";
import { percent } from "../../lib/format";
import { type Bill, formatCost, formatHours, type Hours, usedShare } from "./labels";

export const sumHours = (bill: Bill, part: keyof Hours) => bill.lines.reduce((sum, l) => sum + l.hours[part], 0);

const FIGURES = [
  ["tile-idle", "Allocated, idle"],
  ["tile-spent", "Spent"],
  ["tile-usedshare", "Used share"],
  ["tile-unallocated", "Not allocated"],
  ["tile-energy", "Energy"],
] as const;

export function CostFigures({ bill, isPart }: { bill: Bill; isPart: boolean }) {
  const { total, currency } = bill;
  const { allocated, unmeasured, wasted } = total.hours;
  const unpriced = total.unpriced_hours;
  const notMeasured = ` · ${formatHours(unmeasured)} not measured`;
  const idle = wasted ? total.wasted_money : 0;
  const shared = Object.entries(bill.shared);
  const unallocated = shared.reduce((sum, [, money]) => sum + money, 0);
  const unallocatedHours = total.hours.idle + total.hours.lost + total.hours.unknown;
  const hourly = bill.money == null ? null : bill.money / Math.max(bill.recorded_hours, 1 / 60);
  // Without recorded hours the waste is unknown, not zero.
  if (total.hours.total === 0)
    return (
      <section class="tiles even" aria-label="summary of cost">
        {FIGURES.map(([id, name]) => (
          <Tile key={id} id={id} name={name} value="unknown" meaning="nothing was recorded in this time range" />
        ))}
      </section>
    );
  return (
    <section class="tiles even" aria-label="summary of cost">
      <Tile
        id="tile-idle"
        name="Allocated, idle"
        value={formatCost(idle, currency)}
        tone={idle ? "warn" : undefined}
        meaning={
          wasted
            ? `${formatHours(wasted)} GPU-hours allocated and idle`
            : unmeasured
              ? "no measured GPU-hour was idle"
              : "no GPU was allocated and idle"
        }
      />
      <Tile
        id="tile-spent"
        name="Spent"
        value={formatCost(bill.money, currency)}
        meaning={
          unpriced > 0.05
            ? `excluding ${formatHours(unpriced)} GPU-hours without a price`
            : `${formatCost(hourly, currency)} / h`
        }
      />
      <Tile
        id="tile-usedshare"
        name="Used share"
        value={usedShare(total.hours) ?? "unknown"}
        meaning={`of ${formatHours(allocated)} allocated GPU-hours; SM activity${unmeasured > 0.05 ? notMeasured : ""}`}
      />
      {isPart ? (
        <Tile
          id="tile-unallocated"
          name="Not allocated"
          value={`${formatHours(unallocatedHours)} h`}
          meaning="GPU-hours of this selection"
        />
      ) : (
        <Tile
          id="tile-unallocated"
          name="Not allocated"
          value={formatCost(shared.length || unallocatedHours < 0.05 ? unallocated : null, currency)}
          meaning={
            shared.map(([item, money]) => `${item} ${formatCost(money, currency)}`).join(" · ") ||
            (unallocatedHours < 0.05 ? "every GPU was allocated" : `${formatHours(unallocatedHours)} GPU-hours`)
          }
        />
      )}
      <Tile
        id="tile-energy"
        name="Energy"
        value={bill.kwh ? `${formatHours(bill.kwh)} kWh` : "unknown"}
        meaning={
          !bill.kwh
            ? "not measured"
            : bill.kwh_with_pue == null
              ? "GPUs only; PUE unknown"
              : `${formatHours(bill.kwh_with_pue)} kWh with PUE ${bill.pue}`
        }
      />
    </section>
  );
}

const PARTS: [keyof Hours, string, string][] = [
  ["used", "used", "accent"],
  ["spare", "allocated, in use, spare", "calm"],
  ["wasted", "allocated, idle", "warn"],
  ["unmeasured", "allocated, not measured", "warn2"],
  ["idle", "not allocated", "idle"],
  ["lost", "lost to faults", "bad"],
  ["unknown", "unknown", "unknown"],
];

export function HoursBar({ bill }: { bill: Bill }) {
  if (sumHours(bill, "total") === 0) return <p class="dim">Nothing was recorded in this time range.</p>;
  const totalHours = sumHours(bill, "total");
  const parts = PARTS.map(([part, text, tone]) => ({ text, tone, part, n: sumHours(bill, part) })).filter(
    (p) => p.n > 0.005,
  );
  return (
    <>
      <div
        class="stackbar"
        role="img"
        data-testid="hours-bar"
        aria-label={parts.map((p) => `${p.text} ${percent((100 * p.n) / totalHours)}`).join(", ")}
      >
        {parts.map((p) => (
          <i
            key={p.part}
            class={p.tone}
            style={{ flexGrow: p.n / totalHours }}
            title={`${p.text}: ${formatHours(p.n)} h`}
          />
        ))}
      </div>
      <ul class="keys-row column">
        {parts.map((p) => (
          <li key={p.part} title={bill.words[p.part]}>
            <i class={p.tone} aria-hidden="true" />
            {p.text} <b>{percent((100 * p.n) / totalHours)}</b> <span class="dim">{formatHours(p.n)} h</span>
          </li>
        ))}
      </ul>
    </>
  );
}
