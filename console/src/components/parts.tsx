// Components that all pages share: panels, chips, times, marks and empty states.

import type { ComponentChildren } from "preact";
import { acknowledge } from "../lib/api";
import { dateTime, humanise, percent, shortDuration, timeOfDay, utcTime, workloadName } from "../lib/format";
import { to } from "../lib/router";
import { getState, now } from "../lib/store";
import type { Card as CardValue, Severity, Silenced } from "../lib/types";

export function Panel(p: {
  title?: string;
  hint?: ComponentChildren;
  children: ComponentChildren;
  id?: string;
  class?: string;
  side?: ComponentChildren;
}) {
  return (
    <section class={`panel ${p.class ?? ""}`} data-testid={p.id} aria-label={p.title}>
      {p.title && (
        <header>
          <h2>{p.title}</h2>
          <span class="hint">{p.hint}</span>
          {p.side}
        </header>
      )}
      {p.children}
    </section>
  );
}
/** A number with its name and an explanation. */
export function Tile(p: {
  name: string;
  value: string;
  meaning: ComponentChildren;
  id: string;
  tone?: string;
  href?: string;
}) {
  const content = (
    <>
      <span>{p.name}</span>
      <b class={p.value === "unknown" ? "unknown" : p.tone}>{p.value}</b>
      <span title={typeof p.meaning === "string" ? p.meaning : undefined}>{p.meaning}</span>
    </>
  );
  return p.href ? (
    <a class="panel tile" data-testid={p.id} href={p.href}>
      {content}
    </a>
  ) : (
    <div class="panel tile" data-testid={p.id}>
      {content}
    </div>
  );
}
export const Chip = (p: { children: ComponentChildren; tone?: string; title?: string }) => (
  <span class={`chip ${p.tone ?? ""}`} title={p.title}>
    {p.children}
  </span>
);
/** A time in the viewer's time zone, with UTC on hover. */
export const Time = (p: { at: string; full?: boolean; millis?: boolean }) => (
  <time dateTime={p.at} title={utcTime(p.at)}>
    {p.full ? dateTime(p.at) : timeOfDay(p.at, p.millis)}
  </time>
);
/** The age of a time, with the time on hover. */
export const Since = (p: { at: string }) => (
  <time dateTime={p.at} title={`${dateTime(p.at)} · ${utcTime(p.at)}`}>
    {shortDuration(now() - Date.parse(p.at))} ago
  </time>
);
/** For `ref`: an input that a user opened gets the keyboard focus. */
export const focusOnMount = (field: HTMLElement | null) => field?.focus();

export const GLYPH: Record<Severity, string> = { critical: "✕", warning: "▲", info: "○" };
/** A text with a mark in front: `tone` is ok, warning, critical, info or empty. */
export const MarkedText = (p: { tone?: string; children?: ComponentChildren; glyph?: string }) => (
  <span class="state">
    <i class={`mark ${p.tone ?? ""}`} aria-hidden="true">
      {p.glyph ?? { ok: "✓", warning: "▲", critical: "✕", info: "○" }[p.tone ?? ""] ?? "·"}
    </i>
    {p.children}
  </span>
);
export const SeverityChip = (p: { severity: Severity }) => (
  <span class={`chip ${p.severity}`}>
    <i aria-hidden="true">{GLYPH[p.severity]}</i> {p.severity}
  </span>
);
/** A share as a bar and as a number; the number is also the text for screen readers. */
export const Bar = (p: { share: number | null; text?: string; tone?: string; label?: string }) => (
  <div
    class={`bar ${p.tone ?? ""}`}
    role="img"
    aria-label={`${p.label ?? ""} ${p.text ?? (p.share == null ? "unknown" : percent(100 * p.share))}`.trim()}
  >
    <em>
      <i style={{ width: `${100 * Math.min(1, Math.max(0, p.share ?? 0))}%` }} />
    </em>
    <span>{p.text ?? (p.share == null ? "unknown" : percent(100 * p.share))}</span>
  </div>
);
export const Skeleton = (p: { lines?: number; height?: number }) => (
  <div class="skeleton" aria-hidden="true">
    {p.height ? (
      <div class="bone" style={{ height: `${p.height}px` }} />
    ) : (
      Array.from({ length: p.lines ?? 3 }, (_, i) => <div class="bone" key={i} />)
    )}
  </div>
);
export const Problem = (p: { children: ComponentChildren }) => (
  <p class="problem" role="alert" data-testid="problem">
    {p.children}
  </p>
);
/** A failed request; `isStale` if the page still shows an older answer. */
export const RequestProblem = (p: { problem?: { message: string }; isStale: boolean }) =>
  p.problem ? <Problem>{`${p.problem.message}${p.isStale ? ". Showing the last known state." : ""}`}</Problem> : null;
/** The views of a page; each view has its own URL. */
export const Tabs = (p: { label: string; path: string; tabs: [string, string][]; view: string }) => (
  <nav class="tabs" aria-label={p.label}>
    {p.tabs.map(([id, text], i) => (
      <a
        key={id}
        href={i ? `${p.path}?view=${id}` : p.path}
        aria-current={p.view === id ? "page" : undefined}
        data-testid={`tab-${id}`}
      >
        {text}
      </a>
    ))}
  </nav>
);
export const Empty = (p: { title: string; children?: ComponentChildren }) => (
  <div class="empty" data-testid="empty">
    <b>{p.title}</b>
    <p>{p.children}</p>
  </div>
);
/** A table of names and values. Null values are omitted; for unknown values the caller passes "unknown". */
export const Facts = (p: { rows: [string, ComponentChildren][]; id?: string }) => (
  <table class="facts" data-testid={p.id}>
    <tbody>
      {p.rows
        .filter(([, value]) => value != null && value !== "" && value !== false)
        .map(([name, value]) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td>{value}</td>
          </tr>
        ))}
    </tbody>
  </table>
);
/** A row of buttons of which one is selected; the caller keeps the selection in the URL. */
export const Choice = (p: {
  label: string;
  options: readonly (readonly [string, string])[];
  value: string;
  choose: (value: string) => void;
  id?: string;
}) => (
  <div class="pick" role="group" aria-label={p.label} data-testid={p.id}>
    {p.options.map(([value, text]) => (
      <button
        type="button"
        key={value}
        aria-pressed={value === p.value}
        data-value={value}
        onClick={() => p.choose(value)}
      >
        {text}
      </button>
    ))}
  </div>
);
export const Select = (p: {
  label: string;
  options: readonly (readonly [string, string])[];
  value: string;
  choose: (value: string) => void;
  id?: string;
}) => (
  <select value={p.value} aria-label={p.label} data-testid={p.id} onChange={(e) => p.choose(e.currentTarget.value)}>
    {p.options.map(([value, text]) => (
      <option key={value} value={value}>
        {text}
      </option>
    ))}
  </select>
);

/** Who silenced a place, until when, and why. */
export const describeSilence = (silence: Silenced) =>
  `by ${silence.author} until ${utcTime(silence.ends_at)}: ${silence.reason}`;

/** Of an open incident whose signals have ended while its repair still has the node: recovering. */
export const incidentState = (incident: { state: string; recovering_since: string | null }) =>
  incident.recovering_since ? "recovering" : incident.state;

export function IncidentCard({ card }: { card: CardValue }) {
  const isOpen = card.state !== "resolved";
  // If the plan needs approval, the next step is a button that opens the plan with the focus on Approve.
  const needsApproval = getState().status?.mode === "ask" && card.plan.length > 0 && !card.repair;
  return (
    <article
      class={`card ${isOpen ? card.severity : "closed"}`}
      data-testid="incident-card"
      data-incident={card.id}
      data-row={to.incident(card.id)}
      tabIndex={-1}
    >
      <h3>
        <a href={to.incident(card.id)}>{card.title}</a>
      </h3>
      <p>
        {!isOpen && card.part_of ? (
          <>
            Merged into <a href={to.incident(card.part_of)}>{card.part_of}</a>.
          </>
        ) : (
          (card.why ?? (isOpen ? "No finding yet: collecting evidence." : "Resolved without a finding."))
        )}
      </p>
      <div class="chips">
        {isOpen && <SeverityChip severity={card.severity} />}
        {card.confidence != null && (
          <Chip title={`confidence in ${card.cause}`}>confidence {percent(100 * card.confidence)}</Chip>
        )}
        {card.workloads.length > 0 && (
          <Chip title={card.workloads.join("\n")}>
            {card.workloads.length === 1 ? workloadName(card.workloads[0]) : `${card.workloads.length} workloads`}
          </Chip>
        )}
        {isOpen && card.root && (
          <a class="chip" href={to.incident(card.root)} title={`${card.root} stops a job that runs here`}>
            beside {card.root}
          </a>
        )}
        {card.repair && isOpen && <Chip tone="accent">{card.repair.activity}</Chip>}
        {card.silenced_by && (
          <Chip tone="warning" title={describeSilence(card.silenced_by)}>
            silenced
          </Chip>
        )}
        <Chip title={utcTime(card.opened_at)}>
          {isOpen
            ? `${incidentState(card)} ${shortDuration(now() - Date.parse(card.opened_at))}`
            : `resolved ${timeOfDay(card.resolved_at ?? card.opened_at)}`}
        </Chip>
      </div>
      {isOpen && (
        <>
          {card.next_step && !card.repair && (
            <p class="next" data-testid="next-step">
              <b>Next</b> {card.next_step}
            </p>
          )}
          <div class="buttons">
            {needsApproval && (
              <a class="button primary wrap" href={`${to.incident(card.id)}?plan=1`} data-testid="review">
                Review: {[...new Set(card.plan)].map(humanise).join(", ")}
              </a>
            )}
            <a class={needsApproval ? "button" : "button primary"} href={to.incident(card.id)} data-testid="why">
              Details
            </a>
            {card.state === "open" && (
              <button type="button" data-testid="acknowledge" onClick={() => acknowledge(card.id)}>
                Acknowledge
              </button>
            )}
          </div>
        </>
      )}
    </article>
  );
}
