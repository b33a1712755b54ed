// Cost and capacity: cost of idle GPUs, spend by owner with drill-down, and budgets; the second tab shows capacity.

import { useState } from "preact/hooks";
import { Choice, Empty, Panel, RequestProblem, Select, Skeleton, Tabs } from "../../components/parts";
import { Table } from "../../components/table";
import { useRequest } from "../../lib/api";
import { type PageProps, param, setParam, setParams, withParams } from "../../lib/router";
import { now, useHub, usePulse } from "../../lib/store";
import { CapacityView } from "./capacity";
import "../../styles/pages.css";
import { columns, IdlePanel } from "./bill";
import { Budgets, Prices } from "./budgets";
import { CostFigures, HoursBar, sumHours } from "./figures";
import { type Bill, DRILL_DOWN, formatHours, type Line, type Waste } from "./labels";

const SPANS: Record<string, number> = { "24h": 86400, "7d": 604800, "30d": 2592000, "90d": 7776000 };

const DIMENSIONS = ["team", "user", "job", "project", "namespace", "pool", "model", "node", "cluster"].map(
  (d) => [d, `by ${d}`] as const,
);

const POLICIES = [
  ["none", "showback"],
  ["use", "shared by use"],
  ["allocation", "shared by allocation"],
  ["even", "shared evenly"],
] as const;

const startOfMinute = () => Math.floor(now() / 60000) * 60;

export function CostPage(p: PageProps) {
  const view = param(p.address, "view", "cost");
  const { status } = useHub();
  return (
    <main class="single stack" data-testid="cost-page">
      <Tabs
        label="cost or capacity"
        path="/cost"
        tabs={[
          ["cost", "Cost"],
          ["capacity", "Capacity"],
        ]}
        view={view}
      />
      {!status ? (
        <Panel>
          <Skeleton lines={8} />
        </Panel>
      ) : view === "capacity" ? (
        <CapacityView {...p} />
      ) : (
        <CostView {...p} />
      )}
    </main>
  );
}

function CostView({ address }: PageProps) {
  const range = param(address, "range", "7d");
  const by = param(address, "by", "team");
  const policy = param(address, "policy", "none");
  const filters = address.searchParams.getAll("of");
  const beat = usePulse(60000);
  const [until] = useState(startOfMinute);
  const from = until - (SPANS[range] ?? SPANS["7d"]);
  // The hub limits the end to its own now: with an end in the future the URL stays the same while the page is open.
  const openEnd = String(until + 86400);
  const query = new URLSearchParams({ from: String(from), to: openEnd, by, policy });
  for (const o of filters) query.append("of", o);
  const { answer: bill, problem } = useRequest<Bill>(`/api/cost?${query}`, beat);
  const wasteQuery = new URLSearchParams({ from: String(from), to: openEnd });
  for (const o of filters) wasteQuery.append("of", o);
  const waste = useRequest<{ currency: string; waste: Waste[] }>(`/api/cost/waste?${wasteQuery}`, beat);
  const drill = (line: Line) => {
    const below = DRILL_DOWN[by];
    const name = String(line[by]);
    if (!below || name === "(nobody)") return;
    const params = new URLSearchParams(address.search);
    params.append("of", `${by}=${name === "unmapped" ? "" : name}`);
    params.set("by", below);
    params.delete("sort");
    return `/cost?${params}`;
  };
  return (
    <>
      <div class="explore-bar flush">
        <Choice
          label="time"
          id="cost-range"
          options={Object.keys(SPANS).map((s) => [s, `last ${s}`] as const)}
          value={range}
          choose={(r) => setParam("range", r === "7d" ? null : r)}
        />
        <label class="chip">
          split{" "}
          <Select
            label="split by"
            id="cost-by"
            options={DIMENSIONS}
            value={by}
            choose={(b) => setParam("by", b === "team" ? null : b)}
          />
        </label>
        <label class="chip" title={bill?.policy_words}>
          unallocated GPUs{" "}
          <Select
            label="who pays for unallocated GPUs"
            id="cost-policy"
            options={POLICIES}
            value={policy}
            choose={(x) => setParam("policy", x === "none" ? null : x)}
          />
        </label>
        {filters.length > 0 && (
          <span class="crumbs" data-testid="crumbs">
            <a href={withParams(address, { of: null, by: null })}>all</a>
            {filters.map((o, i) => (
              <>
                {" "}
                ›{" "}
                <button
                  type="button"
                  class="chip"
                  key={o}
                  title="Remove this filter"
                  onClick={() => removeFilter(address, i)}
                >
                  {o.replace("=", " ").replace(/ $/, " unmapped")} ✕
                </button>
              </>
            ))}
          </span>
        )}
      </div>
      <RequestProblem problem={problem} isStale={Boolean(bill)} />
      {!bill ? (
        !problem && <Skeleton lines={8} />
      ) : (
        <>
          <CostFigures bill={bill} isPart={filters.length > 0 && policy === "none"} />
          <div class="columns">
            <div>
              <IdlePanel
                waste={waste.answer?.waste}
                currency={bill.currency}
                problem={waste.problem}
                hours={bill.total.hours}
              />
              <Panel
                title={`Spent by ${by}`}
                id="bill-panel"
                hint={
                  <>
                    {bill.policy_words}
                    {DRILL_DOWN[by] && <> · select a row to split it by {DRILL_DOWN[by]}</>}
                  </>
                }
              >
                <Table
                  id="bill"
                  caption={`Cost by ${by}`}
                  rows={bill.lines}
                  rowKey={(l) => String(l[by])}
                  rowTestId="bill-row"
                  address={address}
                  sort="-money"
                  maxRows={50}
                  href={(l) => drill(l) ?? withParams(address, {})}
                  columns={columns(by, bill, drill)}
                  empty={
                    <Empty title="Nothing was recorded in this time range">
                      GPU-hours are recorded from the first sample of a GPU. The first ones appear two minutes after the
                      hub starts.
                    </Empty>
                  }
                />
              </Panel>
            </div>
            <aside>
              <Panel title="GPU-hours" hint={`${formatHours(sumHours(bill, "total"))} in total`} id="hours-panel">
                <HoursBar bill={bill} />
              </Panel>
              <Budgets beat={beat} />
              <Prices bill={bill} />
            </aside>
          </div>
        </>
      )}
    </>
  );
}

function removeFilter(address: URL, at: number): void {
  const remaining = address.searchParams.getAll("of").slice(0, at);
  const params = new URLSearchParams(address.search);
  const removed = address.searchParams.getAll("of")[at];
  params.delete("of");
  for (const o of remaining) params.append("of", o);
  params.set("by", removed.slice(0, removed.indexOf("=")));
  history.pushState(null, "", `/cost?${params}`);
  setParams({});
}
