// Small pieces that all pages share.

import type { ComponentChildren } from "preact";
import { ago, clock, day, percent, utc } from "./format";
import { acknowledge, now } from "./hub";
import type { Card as CardValue, Severity } from "./types";

export function Panel(p: { title?: string; hint?: ComponentChildren; children: ComponentChildren; id?: string; class?: string; side?: ComponentChildren }) {
  return (
    <section class={`panel ${p.class ?? ""}`} data-testid={p.id}>
      {p.title && <header><h2>{p.title}</h2><span class="hint">{p.hint}</span>{p.side}</header>}
      {p.children}
    </section>
  );
}
export const Chip = (p: { children: ComponentChildren; tone?: string; title?: string }) => (
  <span class={`chip ${p.tone ?? ""}`} title={p.title}>{p.children}</span>
);
export const Time = (p: { at: string; full?: boolean; millis?: boolean }) => (
  <time dateTime={p.at} title={utc(p.at)}>{p.full ? day(p.at) : clock(p.at, p.millis)}</time>
);
/** For `ref`: an input that appears because someone asked for it takes the keyboard. */
export const focus = (field: HTMLElement | null) => field?.focus();
export const GLYPH: Record<Severity, string> = { critical: "✕", warning: "▲", info: "○" };
export const Level = (p: { severity: Severity }) => (
  <span class={`chip ${p.severity}`}><i aria-hidden="true">{GLYPH[p.severity]}</i> {p.severity}</span>
);
export const Skeleton = (p: { lines?: number; height?: number }) => (
  <div class="skeleton" aria-hidden="true">
    {p.height ? <div class="bone" style={{ height: `${p.height}px` }} /> : Array.from({ length: p.lines ?? 3 }, (_, i) => <div class="bone" key={i} />)}
  </div>
);
export const Problem = (p: { children: ComponentChildren }) => <p class="problem" role="alert" data-testid="problem">{p.children}</p>;
export const Empty = (p: { title: string; children?: ComponentChildren }) => (
  <div class="empty" data-testid="empty"><b>{p.title}</b><p>{p.children}</p></div>
);

export function IncidentCard({ card, selected }: { card: CardValue; selected?: boolean }) {
  const open = card.state !== "resolved";
  return (
    <article class={`card ${open ? card.severity : "closed"}`} data-testid="incident-card" data-incident={card.id} aria-current={selected || undefined}>
      <h3><a href={`/incidents/${card.id}`}>{card.title}</a></h3>
      <p>{card.why ?? (open ? "No finding yet: the signals are being gathered." : "Closed without a finding.")}</p>
      <div class="chips">
        {open && <Level severity={card.severity} />}
        {card.confidence != null && <Chip title={`confidence of the finding ${card.cause}`}>cause {percent(100 * card.confidence)}</Chip>}
        {card.workloads.length > 0 && <Chip title={card.workloads.join("\n")}>{card.workloads.length === 1 ? card.workloads[0] : `${card.workloads.length} workloads`}</Chip>}
        <Chip title={utc(card.opened_at)}>{open ? `${card.state} ${ago(now() - Date.parse(card.opened_at))}` : `closed ${clock(card.resolved_at ?? card.opened_at)}`}</Chip>
      </div>
      {open && (
        <>
          {card.next_step && <p class="next" data-testid="next-step"><b>Next</b> {card.next_step}</p>}
          <div class="buttons">
            <a class="button primary" href={`/incidents/${card.id}`} data-testid="why">Why</a>
            {card.state === "open" && <button type="button" data-testid="acknowledge" onClick={() => acknowledge(card.id)}>Acknowledge</button>}
          </div>
        </>
      )}
    </article>
  );
}
