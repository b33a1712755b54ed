// What does not work now, above every page.

import { clock, many, utc } from "../lib/format";
import type { Status } from "../lib/types";

export function RuleTrouble({ rules }: { rules: Status["rules"] }) {
  return (
    <details class="banner" data-testid="rule-trouble">
      <summary role="status">
        ▲ The rule files have {many(rules.problems.length, "problem")}; the {rules.rules} rules of{" "}
        <b title={utc(rules.in_force_since)}>{clock(rules.in_force_since)}</b> stay in force.
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

/** What does not work now, in the hub's own sentences. */
export function Degraded({ said }: { said: string[] }) {
  const first = <>▲ Degraded. {said[0]}</>;
  if (said.length < 2)
    return (
      <p class="banner" role="status" data-testid="degraded">
        {first}
      </p>
    );
  return (
    <details class="banner" data-testid="degraded">
      <summary role="status">
        {first} <b>(and {said.length - 1} more)</b>
      </summary>
      <ul>
        {said.slice(1).map((one) => (
          <li key={one}>{one}</li>
        ))}
      </ul>
    </details>
  );
}
