// Banners on every page: current problems of the hub.

import { plural, timeOfDay, utcTime } from "../lib/format";
import type { Status } from "../lib/types";

export function RuleReloadBanner({ rules }: { rules: Status["rules"] }) {
  return (
    <details class="banner" data-testid="rule-trouble">
      <summary role="status">
        ▲ Rule reload failed: {plural(rules.problems.length, "problem")}. The {rules.rules} rules loaded at{" "}
        <b title={utcTime(rules.in_force_since)}>{timeOfDay(rules.in_force_since)}</b> stay in use.
      </summary>
      <ul>
        {rules.problems.map((problem) => (
          <li key={problem}>
            <code>{problem}</code>
          </li>
        ))}
      </ul>
    </details>
  );
}

/** The problems that make the hub degraded. */
export function DegradedBanner({ problems }: { problems: string[] }) {
  const firstProblem = <>▲ Degraded. {problems[0]}</>;
  if (problems.length < 2)
    return (
      <p class="banner" role="status" data-testid="degraded">
        {firstProblem}
      </p>
    );
  return (
    <details class="banner" data-testid="degraded">
      <summary role="status">
        {firstProblem} <b>(and {problems.length - 1} more)</b>
      </summary>
      <ul>
        {problems.slice(1).map((problem) => (
          <li key={problem}>{problem}</li>
        ))}
      </ul>
    </details>
  );
}
