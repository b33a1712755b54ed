// The time breakdown of a job as one bar.

import { Facts } from "../../components/parts";
import { duration } from "../../lib/durations";
import { count, percent } from "../../lib/format";
import type { Report } from "./labels";

const TIME_PARTS: Record<string, { text: string; tone: string }> = {
  productive: { text: "productive", tone: "accent" },
  stall: { text: "stalled", tone: "bad" },
  failure: { text: "failure", tone: "bad2" },
  restart: { text: "restart", tone: "warn" },
  queue: { text: "pending in the queue", tone: "warn2" },
  input: { text: "waiting for input", tone: "warn" },
  pause: { text: "checkpoints and validation", tone: "calm" },
  unknown: { text: "unknown", tone: "unknown" },
};

export function Goodput({ goodput }: { goodput: Report["goodput"] }) {
  const parts = [
    ...(goodput.productive_seconds == null ? [] : [{ reason: "productive", seconds: goodput.productive_seconds }]),
    ...goodput.lost.filter((l) => l.seconds > 0),
  ];
  const explainedSeconds = parts.reduce((sum, p) => sum + p.seconds, 0);
  const unexplainedSeconds = goodput.wall_seconds - explainedSeconds;
  if (unexplainedSeconds > 1) parts.push({ reason: "unknown", seconds: unexplainedSeconds });
  const totalSeconds = Math.max(goodput.wall_seconds, explainedSeconds, 1);
  return (
    <>
      <div
        class="stackbar"
        role="img"
        data-testid="goodput-bar"
        aria-label={parts
          .map((p) => `${TIME_PARTS[p.reason]?.text ?? p.reason} ${percent((100 * p.seconds) / totalSeconds)}`)
          .join(", ")}
      >
        {parts.map((p) => (
          <i
            key={p.reason}
            class={TIME_PARTS[p.reason]?.tone ?? "unknown"}
            style={{ flexGrow: p.seconds / totalSeconds }}
            title={`${TIME_PARTS[p.reason]?.text ?? p.reason}: ${duration(p.seconds)}`}
          />
        ))}
      </div>
      <ul class="keys-row">
        {parts.map((p) => (
          <li key={p.reason}>
            <i class={TIME_PARTS[p.reason]?.tone ?? "unknown"} aria-hidden="true" />
            {TIME_PARTS[p.reason]?.text ?? p.reason} <b>{percent((100 * p.seconds) / totalSeconds)}</b>{" "}
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
          [
            "Longest time without a step",
            goodput.longest_pause_seconds == null ? null : duration(goodput.longest_pause_seconds),
          ],
        ]}
      />
    </>
  );
}
