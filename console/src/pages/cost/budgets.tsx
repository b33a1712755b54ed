// Budgets of this month, and the prices behind all costs.

import { Bar, Chip, Facts, MarkedText, Panel, Problem, Skeleton } from "../../components/parts";
import { Export } from "../../components/table";
import { useRequest } from "../../lib/api";
import { humanise, percent, plural } from "../../lib/format";
import { type Bill, type Budget, formatCost, formatHours } from "./labels";

const BUDGET: Record<string, { tone: string; text: string }> = {
  over: { tone: "critical", text: "exceeded" },
  will_be_over: { tone: "critical", text: "will exceed" },
  may_be_over: { tone: "warning", text: "may exceed" },
  unknown: { tone: "", text: "unknown" },
  within: { tone: "ok", text: "within budget" },
  no_budget: { tone: "", text: "no budget" },
};

const BUDGETS: { title: string; value: (b: Budget) => string | number | null }[] = [
  { title: "team", value: (b) => b.team },
  { title: "spent", value: (b) => b.spent },
  { title: "budget", value: (b) => b.budget },
  { title: "state", value: (b) => humanise(b.state) },
  { title: "forecast", value: (b) => b.forecast },
  { title: "low", value: (b) => b.low },
  { title: "high", value: (b) => b.high },
];

export function Budgets({ beat }: { beat: number }) {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const { answer, problem } = useRequest<{ month: string; currency: string; budgets: Budget[]; notes: string[] }>(
    `/api/cost/budgets?zone=${encodeURIComponent(zone)}`,
    Math.floor(beat / 5),
  );
  return (
    <Panel title="This month" hint={answer && `${answer.month} · spent and forecast`} id="budgets-panel">
      {problem && <Problem>{problem.message}</Problem>}
      {!answer ? (
        !problem && <Skeleton lines={5} />
      ) : answer.budgets.length === 0 ? (
        <p class="dim">Unknown: nothing was recorded this month.</p>
      ) : (
        <table class="facts budgets">
          <tbody>
            {answer.budgets.map((b) => (
              <tr key={b.team} data-testid="budget-row">
                <th scope="row">{b.team}</th>
                <td>
                  <b>{formatCost(b.spent, answer.currency)}</b>
                  {b.budget != null && <> of {formatCost(b.budget, answer.currency)}</>}{" "}
                  <MarkedText tone={BUDGET[b.state]?.tone}>{BUDGET[b.state]?.text ?? humanise(b.state)}</MarkedText>
                  {b.budget != null && b.spent != null && (
                    <Bar
                      share={b.spent / b.budget}
                      tone={BUDGET[b.state]?.tone}
                      label={b.team}
                      text={percent((100 * b.spent) / b.budget)}
                    />
                  )}
                  <small class="plain">
                    {b.spent == null ? (
                      "no price for these GPUs"
                    ) : (
                      <>
                        forecast {formatCost(b.forecast, answer.currency)}
                        {b.low != null && b.high != null
                          ? `, 80 %: ${formatCost(b.low, answer.currency)} – ${formatCost(b.high, answer.currency)}`
                          : " at this rate; too few days for an interval"}
                      </>
                    )}
                  </small>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {answer && answer.budgets.length > 0 && (
        <p class="foot-line">
          <Export id="budgets" columns={BUDGETS} rows={answer.budgets} />
        </p>
      )}
      {answer?.budgets.every((b) => b.budget == null) && (
        <p class="dim small">
          No team has a budget. Set budgets in the price book: the file that <code>prices</code> under{" "}
          <code>[cost]</code> names.
        </p>
      )}
    </Panel>
  );
}

export function Prices({ bill }: { bill: Bill }) {
  return (
    <Panel title="Prices" hint="per GPU-hour, with source" id="prices-panel">
      <Facts
        rows={bill.rates.map((r) => [
          r.of,
          <>
            <b>
              {r.per_gpu_hour.toFixed(2)} {bill.currency}
            </b>{" "}
            <Chip>{humanise(r.kind)}</Chip>
            <small class="plain">
              {r.source}
              {r.checked && `, checked ${r.checked}`}
            </small>
          </>,
        ])}
      />
      {Object.keys(bill.holes).length > 0 && (
        <p class="problem">
          Without a price, not included in any total:{" "}
          {Object.entries(bill.holes)
            .map(([k, v]) => `${k} (${formatHours(v)} h)`)
            .join(", ")}
        </p>
      )}
      {bill.notes.length > 0 && (
        <details class="notes">
          <summary>{plural(bill.notes.length, "note")} about these numbers</summary>
          <ul>
            {bill.notes.map((n) => (
              <li key={n}>{n}</li>
            ))}
          </ul>
        </details>
      )}
    </Panel>
  );
}
