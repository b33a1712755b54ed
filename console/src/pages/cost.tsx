// Cost and capacity: idle money first, who spent what with drill-down, budgets, and on the other side when the fleet is full.

import { useState } from "preact/hooks";
import { Bar, Chip, Choice, Empty, Facts, Mark, Panel, Problem, Select, Skeleton, Tile } from "../components/parts";
import { type Column, Export, Table } from "../components/table";
import { useAsk } from "../lib/api";
import { count, many, money, percent, words } from "../lib/format";
import { type PageProps, param, put, putAll, to, withParams } from "../lib/router";
import { now, useHub, usePulse } from "../lib/store";
import { CapacityView } from "./capacity";
import "../styles/pages.css";

interface Hours {
  total: number;
  allocated: number;
  used: number;
  wasted: number;
  unmeasured: number;
  idle: number;
  lost: number;
  unknown: number;
  kwh: number;
  spare: number;
}
/** Money is null where nothing of it has a price. */
interface Line {
  money: number | null;
  shared: number;
  wasted_money: number | null;
  unpriced_hours: number;
  hours: Hours;
  [dimension: string]: unknown;
}
interface Bill {
  since: number;
  until: number;
  recorded_hours: number;
  by: string[];
  currency: string;
  policy: string;
  policy_words: string;
  lines: Line[];
  total: Line;
  money: number | null;
  shared: Record<string, number>;
  holes: Record<string, number>;
  kwh: number;
  pue: number | null;
  kwh_with_pue: number | null;
  rates: { of: string; kind: string; per_gpu_hour: number; source: string; checked: string }[];
  notes: string[];
  words: Record<string, string>;
}
interface Waste {
  team: string;
  user: string;
  job: string;
  gpu_hours: number;
  money: number | null;
}
interface Budget {
  team: string;
  budget: number | null;
  spent: number | null;
  forecast: number | null;
  low: number | null;
  high: number | null;
  state: string;
}
const SPANS: Record<string, number> = { "24h": 86400, "7d": 604800, "30d": 2592000, "90d": 7776000 };
/** Where a click on a line leads: what its dimension is told apart by. */
const BELOW: Record<string, string> = {
  cluster: "team",
  pool: "team",
  model: "team",
  node: "job",
  team: "user",
  project: "user",
  namespace: "job",
  user: "job",
  kind: "job",
};
const DIMENSIONS = ["team", "user", "job", "project", "namespace", "pool", "model", "node", "cluster"].map(
  (d) => [d, `by ${d}`] as const,
);
const POLICIES = [
  ["none", "showback"],
  ["use", "shared by use"],
  ["allocation", "shared by allocation"],
  ["even", "shared evenly"],
] as const;
const cash = (n: number | null | undefined, currency: string) => money(n, currency, "no price");
const minute = () => Math.floor(now() / 60000) * 60;

export function CostPage(p: PageProps) {
  const view = param(p.address, "view", "cost");
  const { status } = useHub();
  return (
    <main class="single stack" data-testid="cost-page">
      <nav class="tabs" aria-label="cost or capacity">
        {[
          ["cost", "Cost"],
          ["capacity", "Capacity"],
        ].map(([id, text]) => (
          <a
            key={id}
            href={id === "cost" ? "/cost" : "/cost?view=capacity"}
            aria-current={view === id ? "page" : undefined}
            data-testid={`tab-${id}`}
          >
            {text}
          </a>
        ))}
      </nav>
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
  const of = address.searchParams.getAll("of");
  const beat = usePulse(60000);
  const [until] = useState(minute);
  const from = until - (SPANS[range] ?? SPANS["7d"]);
  // The hub ends at its own now: an open page follows it without asking for another address.
  const open = String(until + 86400);
  const asked = new URLSearchParams({ from: String(from), to: open, by, policy });
  for (const o of of) asked.append("of", o);
  const { answer: bill, problem } = useAsk<Bill>(`/api/cost?${asked}`, beat);
  const narrowed = new URLSearchParams({ from: String(from), to: open });
  for (const o of of) narrowed.append("of", o);
  const waste = useAsk<{ currency: string; waste: Waste[] }>(`/api/cost/waste?${narrowed}`, beat);
  const drill = (line: Line) => {
    const below = BELOW[by];
    const name = String(line[by]);
    if (!below || name === "(nobody)") return;
    const wanted = new URLSearchParams(address.search);
    wanted.append("of", `${by}=${name === "unmapped" ? "" : name}`);
    wanted.set("by", below);
    wanted.delete("sort");
    return `/cost?${wanted}`;
  };
  return (
    <>
      <div class="explore-bar flush">
        <Choice
          label="time"
          id="cost-range"
          options={Object.keys(SPANS).map((s) => [s, `last ${s}`] as const)}
          value={range}
          choose={(r) => put("range", r === "7d" ? null : r)}
        />
        <label class="chip">
          split{" "}
          <Select
            label="split by"
            id="cost-by"
            options={DIMENSIONS}
            value={by}
            choose={(b) => put("by", b === "team" ? null : b)}
          />
        </label>
        <label class="chip" title={bill?.policy_words}>
          nobody's GPUs{" "}
          <Select
            label="who pays for what nobody holds"
            id="cost-policy"
            options={POLICIES}
            value={policy}
            choose={(x) => put("policy", x === "none" ? null : x)}
          />
        </label>
        {of.length > 0 && (
          <span class="crumbs" data-testid="crumbs">
            <a href={withParams(address, { of: null, by: null })}>all</a>
            {of.map((o, i) => (
              <>
                {" "}
                ›{" "}
                <button type="button" class="chip" key={o} title="take this out" onClick={() => removeOf(address, i)}>
                  {o.replace("=", " ").replace(/ $/, " unmapped")} ✕
                </button>
              </>
            ))}
          </span>
        )}
      </div>
      {problem && <Problem>{bill ? `This is what was known before: ${problem.message}` : problem.message}</Problem>}
      {!bill ? (
        !problem && <Skeleton lines={8} />
      ) : (
        <>
          <Figures bill={bill} isPart={of.length > 0 && policy === "none"} />
          <div class="columns">
            <div>
              <Idle
                waste={waste.answer?.waste}
                currency={bill.currency}
                problem={waste.problem}
                hours={bill.total.hours}
              />
              <Panel
                title={`Spent ${by === "job" ? "by job" : `by ${by}`}`}
                id="bill-panel"
                hint={
                  <>
                    {bill.policy_words}
                    {BELOW[by] && <> · a line opens into its {BELOW[by]}s</>}
                  </>
                }
              >
                <Table
                  id="bill"
                  caption={`Money by ${by}`}
                  rows={bill.lines}
                  rowKey={(l) => String(l[by])}
                  rowTestId="bill-row"
                  address={address}
                  sort="-money"
                  most={50}
                  href={(l) => drill(l) ?? withParams(address, {})}
                  columns={columns(by, bill, drill)}
                  empty={
                    <Empty title="Nothing was recorded in this time">
                      Hours are kept from when the hub first saw a GPU; its first ones come two minutes after its start.
                    </Empty>
                  }
                />
              </Panel>
            </div>
            <aside>
              <Panel title="GPU-hours" hint={`${hours(total(bill, "total"))} in all`} id="hours-panel">
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
function removeOf(address: URL, at: number): void {
  const left = address.searchParams.getAll("of").slice(0, at);
  const wanted = new URLSearchParams(address.search);
  const gone = address.searchParams.getAll("of")[at];
  wanted.delete("of");
  for (const o of left) wanted.append("of", o);
  wanted.set("by", gone.slice(0, gone.indexOf("=")));
  history.pushState(null, "", `/cost?${wanted}`);
  putAll({});
}

const total = (bill: Bill, part: keyof Hours) => bill.lines.reduce((sum, l) => sum + l.hours[part], 0);
const FIGURES = [
  ["tile-idle", "Idle but held"],
  ["tile-spent", "Spent"],
  ["tile-usedshare", "Used of what was held"],
  ["tile-nobody", "Held by nobody"],
  ["tile-energy", "Energy"],
] as const;
function Figures({ bill, isPart }: { bill: Bill; isPart: boolean }) {
  const { total, currency } = bill;
  const { allocated, unmeasured, wasted } = total.hours;
  const unpriced = total.unpriced_hours;
  const idle = wasted ? total.wasted_money : 0;
  const shared = Object.entries(bill.shared);
  const nobody = shared.reduce((sum, [, money]) => sum + money, 0);
  const unheld = total.hours.idle + total.hours.lost + total.hours.unknown;
  const hourly = bill.money == null ? null : bill.money / Math.max(bill.recorded_hours, 1 / 60);
  // Where nothing was recorded nothing is known: that nobody wasted a GPU would be a claim.
  if (total.hours.total === 0)
    return (
      <section class="tiles even" aria-label="cost in figures">
        {FIGURES.map(([id, name]) => (
          <Tile key={id} id={id} name={name} value="unknown" meaning="nothing was recorded in this time" />
        ))}
      </section>
    );
  return (
    <section class="tiles even" aria-label="cost in figures">
      <Tile
        id="tile-idle"
        name="Idle but held"
        value={cash(idle, currency)}
        tone={idle ? "warn" : undefined}
        meaning={
          wasted
            ? `${hours(wasted)} GPU-hours, held and not used`
            : unmeasured
              ? "none of what was measured"
              : "nobody held a GPU without using it"
        }
      />
      <Tile
        id="tile-spent"
        name="Spent"
        value={cash(bill.money, currency)}
        meaning={
          unpriced > 0.05
            ? `without ${hours(unpriced)} GPU-hours that have no price`
            : `${cash(hourly, currency)} an hour`
        }
      />
      <Tile
        id="tile-usedshare"
        name="Used of what was held"
        value={usedShare(total.hours) ?? "unknown"}
        meaning={`of ${hours(allocated)} GPU-hours; SM activity${unmeasured > 0.05 ? ` · ${hours(unmeasured)} not measured` : ""}`}
      />
      {isPart ? (
        <Tile id="tile-nobody" name="Held by nobody" value={`${hours(unheld)} h`} meaning="GPU-hours of this part" />
      ) : (
        <Tile
          id="tile-nobody"
          name="Held by nobody"
          value={cash(shared.length || unheld < 0.05 ? nobody : null, currency)}
          meaning={
            shared.map(([item, money]) => `${item} ${cash(money, currency)}`).join(" · ") ||
            (unheld < 0.05 ? "every GPU was held" : `${hours(unheld)} GPU-hours`)
          }
        />
      )}
      <Tile
        id="tile-energy"
        name="Energy"
        value={bill.kwh ? `${hours(bill.kwh)} kWh` : "unknown"}
        meaning={
          !bill.kwh
            ? "not measured"
            : bill.kwh_with_pue == null
              ? "at the GPUs; PUE unknown"
              : `${hours(bill.kwh_with_pue)} kWh with PUE ${bill.pue}`
        }
      />
    </section>
  );
}

function Idle({
  waste,
  currency,
  problem,
  hours: all,
}: {
  waste?: Waste[];
  currency: string;
  hours: Hours;
  problem?: Parameters<typeof Table>[0]["problem"];
}) {
  return (
    <Panel title="Idle but held" hint="the most expensive first · SMs below 5 % for 15 minutes" id="idle-panel">
      <Table
        id="idle"
        caption="Holders of idle GPUs"
        rows={waste}
        problem={problem}
        rowKey={(w) => `${w.team} ${w.user} ${w.job}`}
        rowTestId="idle-row"
        most={8}
        href={(w) => to.job(w.job)}
        columns={[
          {
            id: "job",
            title: "Held by",
            value: (w) => w.job,
            cell: (w) => (
              <>
                <a href={to.job(w.job)}>{w.job}</a>
                <small class="plain">
                  {[w.user !== "unmapped" && w.user, w.team !== "unmapped" && `team ${w.team}`]
                    .filter(Boolean)
                    .join(" · ") || "owner unknown"}
                </small>
              </>
            ),
          },
          {
            id: "hours",
            title: "GPU-hours",
            numeric: true,
            value: (w) => w.gpu_hours,
            cell: (w) => hours(w.gpu_hours),
          },
          { id: "money", title: "Money", numeric: true, value: (w) => w.money, cell: (w) => cash(w.money, currency) },
        ]}
        empty={
          <p class="dim">
            {!all.total ? (
              <Mark>Unknown: nothing was recorded in this time.</Mark>
            ) : all.allocated && measured(all) < 0.005 ? (
              <Mark>Unknown: what was held in this time was not measured.</Mark>
            ) : (
              <Mark tone="ok">Nobody held a GPU without using it in this time.</Mark>
            )}
          </p>
        }
      />
    </Panel>
  );
}
const hours = (n: number) => (n > 0 && n < 0.005 ? "< 0.01" : n < 10 ? n.toFixed(n < 0.95 && n > 0 ? 2 : 1) : count(n));
/** What was held and not measured says nothing about how much of it was used. */
const measured = (h: Hours) => h.allocated - h.unmeasured;
const usedShare = (h: Hours) => (measured(h) > 0.005 ? percent((100 * h.used) / measured(h)) : null);
function columns(by: string, bill: Bill, drill: (l: Line) => string | undefined): Column<Line>[] {
  const most = Math.max(...bill.lines.map((l) => l.money ?? 0), 1e-9);
  const exact = (n: number | null) => (n == null ? null : Number(n.toFixed(4)));
  return [
    {
      id: by,
      title: by.replace(/^./, (c) => c.toUpperCase()),
      value: (l) => String(l[by]),
      cell: (l) => {
        const to = drill(l);
        const name = String(l[by]);
        return (
          <>
            {to ? (
              <a href={to}>{name}</a>
            ) : name === "(nobody)" ? (
              "held by nobody"
            ) : by === "job" ? (
              <a href={`/jobs/${encodeURIComponent(name)}`}>{name}</a>
            ) : (
              name
            )}
            {name === "unmapped" && <small class="plain">nobody says whose it is</small>}
          </>
        );
      },
    },
    {
      id: "money",
      title: "Money",
      numeric: true,
      value: (l) => exact(l.money),
      cell: (l) => (
        <span
          class="cashbar"
          title={
            l.unpriced_hours > 0.05 ? `${hours(l.unpriced_hours)} GPU-hours have no price and are not in it` : undefined
          }
        >
          {l.money == null ? (
            <span class="dim">no price</span>
          ) : (
            <>
              {cash(l.money, bill.currency)}
              {l.unpriced_hours > 0.05 && " and more"}
            </>
          )}
          <em aria-hidden="true">
            <i style={{ width: `${(100 * Math.max(0, l.money ?? 0)) / most}%` }} />
          </em>
        </span>
      ),
      class: "wide",
    },
    {
      id: "wasted",
      title: "Idle, held",
      numeric: true,
      value: (l) => (l.hours.wasted ? exact(l.wasted_money) : 0),
      cell: (l) => (l.hours.wasted > 0 ? cash(l.wasted_money, bill.currency) : <span class="dim">–</span>),
      hint: bill.words.wasted,
    },
    {
      id: "allocated",
      title: "GPU-hours",
      numeric: true,
      value: (l) => l.hours.total,
      cell: (l) => hours(l.hours.total),
      hint: bill.words.total,
    },
    {
      id: "used",
      title: "Used",
      numeric: true,
      value: (l) => l.hours.used / measured(l.hours) || null,
      cell: (l) => usedShare(l.hours) ?? <span class="dim">{l.hours.allocated ? "not measured" : "–"}</span>,
      hint: bill.words.used,
    },
    {
      id: "kwh",
      title: "kWh",
      numeric: true,
      minor: true,
      value: (l) => l.hours.kwh || null,
      cell: (l) => (l.hours.kwh ? hours(l.hours.kwh) : <span class="dim">–</span>),
      hint: "at the GPUs; – where nobody measured it",
    },
    ...(bill.policy === "none"
      ? []
      : [
          {
            id: "shared",
            title: "Shared",
            numeric: true,
            value: (l: Line) => l.shared,
            cell: (l: Line) => cash(l.shared, bill.currency),
            hint: "its share of what nobody held",
          },
        ]),
  ];
}

const PARTS: [keyof Hours, string, string][] = [
  ["used", "used", "accent"],
  ["spare", "held, at work, spare", "calm"],
  ["wasted", "held and idle", "warn"],
  ["unmeasured", "held, not measured", "warn2"],
  ["idle", "nobody's", "idle"],
  ["lost", "lost to faults", "bad"],
  ["unknown", "unknown", "unknown"],
];
function HoursBar({ bill }: { bill: Bill }) {
  if (total(bill, "total") === 0) return <p class="dim">Nothing was recorded in this time.</p>;
  const whole = total(bill, "total");
  const parts = PARTS.map(([part, text, tone]) => ({ text, tone, part, n: total(bill, part) })).filter(
    (p) => p.n > 0.005,
  );
  return (
    <>
      <div
        class="stackbar"
        role="img"
        data-testid="hours-bar"
        aria-label={parts.map((p) => `${p.text} ${percent((100 * p.n) / whole)}`).join(", ")}
      >
        {parts.map((p) => (
          <i key={p.part} class={p.tone} style={{ flexGrow: p.n / whole }} title={`${p.text}: ${hours(p.n)} h`} />
        ))}
      </div>
      <ul class="keys-row column">
        {parts.map((p) => (
          <li key={p.part} title={bill.words[p.part]}>
            <i class={p.tone} aria-hidden="true" />
            {p.text} <b>{percent((100 * p.n) / whole)}</b> <span class="dim">{hours(p.n)} h</span>
          </li>
        ))}
      </ul>
    </>
  );
}

const BUDGET: Record<string, { tone: string; text: string }> = {
  over: { tone: "critical", text: "over" },
  will_be_over: { tone: "critical", text: "will be over" },
  may_be_over: { tone: "warning", text: "may be over" },
  unknown: { tone: "", text: "unknown" },
  within: { tone: "ok", text: "within" },
  no_budget: { tone: "", text: "no budget" },
};
const BUDGETS: { title: string; value: (b: Budget) => string | number | null }[] = [
  { title: "team", value: (b) => b.team },
  { title: "spent", value: (b) => b.spent },
  { title: "budget", value: (b) => b.budget },
  { title: "state", value: (b) => words(b.state) },
  { title: "forecast", value: (b) => b.forecast },
  { title: "low", value: (b) => b.low },
  { title: "high", value: (b) => b.high },
];
function Budgets({ beat }: { beat: number }) {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const { answer, problem } = useAsk<{ month: string; currency: string; budgets: Budget[]; notes: string[] }>(
    `/api/cost/budgets?zone=${encodeURIComponent(zone)}`,
    Math.floor(beat / 5),
  );
  return (
    <Panel title="This month" hint={answer && `${answer.month} · spent, and where it will end`} id="budgets-panel">
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
                  <b>{cash(b.spent, answer.currency)}</b>
                  {b.budget != null && <> of {cash(b.budget, answer.currency)}</>}{" "}
                  <Mark tone={BUDGET[b.state]?.tone}>{BUDGET[b.state]?.text ?? words(b.state)}</Mark>
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
                      "its GPUs have no price"
                    ) : (
                      <>
                        ends at {cash(b.forecast, answer.currency)}
                        {b.low != null && b.high != null
                          ? `, 80 %: ${cash(b.low, answer.currency)} – ${cash(b.high, answer.currency)}`
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
          No team has a budget: set them in the price book that <code>[cost] prices</code> names.
        </p>
      )}
    </Panel>
  );
}

function Prices({ bill }: { bill: Bill }) {
  return (
    <Panel title="Prices" hint="per GPU-hour, with their source" id="prices-panel">
      <Facts
        rows={bill.rates.map((r) => [
          r.of,
          <>
            <b>
              {r.per_gpu_hour.toFixed(2)} {bill.currency}
            </b>{" "}
            <Chip>{words(r.kind)}</Chip>
            <small class="plain">
              {r.source}
              {r.checked && `, read ${r.checked}`}
            </small>
          </>,
        ])}
      />
      {Object.keys(bill.holes).length > 0 && (
        <p class="problem">
          No price, and in no sum:{" "}
          {Object.entries(bill.holes)
            .map(([k, v]) => `${k} (${hours(v)} h)`)
            .join(", ")}
        </p>
      )}
      {bill.notes.length > 0 && (
        <details class="notes">
          <summary>{many(bill.notes.length, "note")} about these numbers</summary>
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
