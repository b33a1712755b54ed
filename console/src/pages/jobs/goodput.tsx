// The time breakdown of a job as one bar.

import { Facts } from "../../components/parts";
import { duration } from "../../lib/durations";
import { count, percent } from "../../lib/format";
import type { Report } from "./labels";

const LOST: Record<string, { text: string; tone: string }> = {
  productive: { text: "productive", tone: "accent" },
  stall: { text: "stalled", tone: "bad" },
  failure: { text: "failure", tone: "bad2" },
  restart: { text: "restart", tone: "warn" },
  queue: { text: "pending in the queue", tone: "warn2" },
  pause: { text: "checkpoints and validation", tone: "calm" },
  unknown: { text: "unknown", tone: "unknown" },
};

export function Goodput({ goodput }: { goodput: Report["goodput"] }) {
  const parts = [
    ...(goodput.productive_seconds == null ? [] : [{ reason: "productive", seconds: goodput.productive_seconds }]),
    ...goodput.lost.filter((l) => l.seconds > 0),
  ];
  const told = parts.reduce((sum, p) => sum + p.seconds, 0);
  const rest = goodput.wall_seconds - told;
  if (rest > 1) parts.push({ reason: "unknown", seconds: rest });
  const whole = Math.max(goodput.wall_seconds, told, 1);
  return (
    <>
      <div
        class="stackbar"
        role="img"
        data-testid="goodput-bar"
        aria-label={parts
          .map((p) => `${LOST[p.reason]?.text ?? p.reason} ${percent((100 * p.seconds) / whole)}`)
          .join(", ")}
      >
        {parts.map((p) => (
          <i
            key={p.reason}
            class={LOST[p.reason]?.tone ?? "unknown"}
            style={{ flexGrow: p.seconds / whole }}
            title={`${LOST[p.reason]?.text ?? p.reason}: ${duration(p.seconds)}`}
          />
        ))}
      </div>
      <ul class="keys-row">
        {parts.map((p) => (
          <li key={p.reason}>
            <i class={LOST[p.reason]?.tone ?? "unknown"} aria-hidden="true" />
            {LOST[p.reason]?.text ?? p.reason} <b>{percent((100 * p.seconds) / whole)}</b>{" "}
            <span class="dim">{duration(p.seconds)}</span>
          </li>
        ))}
      </ul>
      <Facts
        rows={[
          [
            "Steps",
            goodput.steps == null ? (
              "unknown: the job reports no steps"
            ) : (
              <>
                {count(goodput.steps)}
                <span class="dim"> · {duration(goodput.step_seconds)} per step</span>
              </>
            ),
          ],
          ["Longest pause", goodput.longest_pause_seconds == null ? null : duration(goodput.longest_pause_seconds)],
        ]}
      />
    </>
  );
}
