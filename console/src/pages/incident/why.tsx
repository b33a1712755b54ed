// The diagnosis: ranked causes, causes ruled out, and their evidence.

import { useState } from "preact/hooks";
import { Bar, Empty, Panel, Time } from "../../components/parts";
import { Export } from "../../components/table";
import { many, words } from "../../lib/format";
import type { Detail, Finding } from "../../lib/types";

const WHY: {
  title: string;
  value: (f: { cause: string; why: string; confidence: number | null }) => string | number;
}[] = [
  { title: "cause", value: (f) => f.cause },
  { title: "likely", value: (f) => f.confidence ?? "ruled out" },
  { title: "because", value: (f) => f.why },
];

export function Why({ findings, looked, apart }: { findings: Finding[]; looked: string[]; apart?: string | null }) {
  const out = new Map(findings.flatMap((f) => f.ruled_out).map((r) => [r.cause, r.why]));
  for (const f of findings) out.delete(f.cause);
  return (
    <Panel title="Diagnosis" hint="most likely cause first, then causes ruled out" id="why-panel">
      {findings.length === 0 && out.size === 0 ? (
        <Empty title="No finding yet">
          {looked.length ? `Checked: ${looked.join(", ")}.` : "Collecting evidence."}
        </Empty>
      ) : (
        <div class="scroll">
          <table class="why">
            <caption class="unseen">Causes, most likely first</caption>
            <thead>
              <tr>
                <th scope="col">Cause</th>
                <th scope="col">Confidence</th>
                <th scope="col">Reason</th>
              </tr>
            </thead>
            <tbody>
              {findings.map((f) => (
                <tr key={f.cause} data-testid="finding">
                  <td>
                    {f.title}
                    <small>{f.cause}</small>
                  </td>
                  <td>
                    <Bar share={f.confidence} label="confidence" />
                  </td>
                  <td>
                    {f.why}
                    {f.evidence.length > 0 && (
                      <details class="facts-of">
                        <summary>{many(f.evidence.length, "fact")}</summary>
                        <ul>
                          {f.evidence.map((e) => (
                            <li key={e.text}>
                              <span class="dim">{e.source}</span> {e.text}
                            </li>
                          ))}
                        </ul>
                      </details>
                    )}
                  </td>
                </tr>
              ))}
              {[...out].map(([cause, why]) => (
                <tr key={cause} class="out" data-testid="ruled-out">
                  <td>
                    <i class="mark" aria-hidden="true">
                      –
                    </i>
                    {words(cause)}
                  </td>
                  <td>ruled out</td>
                  <td>{why}</td>
                </tr>
              ))}
            </tbody>
          </table>
          <p class="foot-line">
            <Export
              id="why"
              columns={WHY}
              rows={[...findings, ...[...out].map(([cause, why]) => ({ cause, why, confidence: null }))]}
            />
          </p>
        </div>
      )}
      {apart && <p class="dim small apart">{apart}</p>}
      {findings.length > 0 && looked.length > 0 && <p class="dim small">Checked: {looked.join(", ")}.</p>}
    </Panel>
  );
}

const MOST_FACTS = 20;

/** The alert or the series by its name; its labels are in the text, and whole on hover. */
const sourceName = (source: string) => /alertname="([^"]+)"/.exec(source)?.[1] ?? source.replace(/\s*\{.*$/s, "");

export function EvidenceLines({ detail }: { detail: Detail }) {
  const [all, showAll] = useState(false);
  const seen = new Set<string>();
  const lines = (detail.diagnosis?.findings ?? [])
    .flatMap((f) => f.evidence)
    .concat(
      detail.incident.members.map((m) => ({
        source: m.kind === "alert" ? m.ref : m.kind,
        text: m.text,
        at: m.since,
        place: m.place,
      })),
    )
    .filter((e) => !seen.has(e.text) && seen.add(e.text))
    .sort((a, b) => (a.at ?? "").localeCompare(b.at ?? ""));
  return (
    <Panel title="Evidence" hint={many(lines.length, "fact")} id="evidence-panel">
      {lines.length === 0 ? (
        <Empty title="No evidence yet" />
      ) : (
        <ol class="evidence">
          {(all ? lines : lines.slice(0, MOST_FACTS)).map((e) => (
            <li key={e.text}>
              {e.at ? <Time at={e.at} millis /> : <span>–</span>}
              <b title={e.source}>{sourceName(e.source)}</b>
              <span>{e.text}</span>
            </li>
          ))}
        </ol>
      )}
      {!all && lines.length > MOST_FACTS && (
        <button type="button" class="plain" data-testid="more-facts" onClick={() => showAll(true)}>
          Show {lines.length - MOST_FACTS} more
        </button>
      )}
    </Panel>
  );
}
