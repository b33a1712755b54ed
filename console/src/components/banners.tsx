// Banners above every page: what does not work now.

import { clock, many, utc } from "../lib/format";
import type { Status } from "../lib/types";

export function RuleTrouble({ rules }: { rules: Status["rules"] }) {
  return (
    <details class="banner" data-testid="rule-trouble">
      <summary role="status">
        ▲ Rule reload failed: {many(rules.problems.length, "problem")}. The {rules.rules} rules loaded at{" "}
        <b title={utc(rules.in_force_since)}>{clock(rules.in_force_since)}</b> stay in use.
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

/** What does not work now, as the hub reports it. */
export function Degraded({ problems }: { problems: string[] }) {
  const first = <>▲ Degraded. {problems[0]}</>;
  if (problems.length < 2)
    return (
      <p class="banner" role="status" data-testid="degraded">
        {first}
      </p>
    );
  return (
    <details class="banner" data-testid="degraded">
      <summary role="status">
        {first} <b>(and {problems.length - 1} more)</b>
      </summary>
      <ul>
        {problems.slice(1).map((problem) => (
          <li key={problem}>{problem}</li>
        ))}
      </ul>
    </details>
  );
}
