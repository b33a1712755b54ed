// The diagnosis: ranked causes, causes ruled out, and their evidence.

import { useState } from "preact/hooks";
import { Bar, Empty, Panel, Time } from "../../components/parts";
import { Export } from "../../components/table";
import { humanise, plural } from "../../lib/format";
import type { Detail, Finding } from "../../lib/types";

const EXPORT_COLUMNS: {
  title: string;
  value: (f: { cause: string; why: string; confidence: number | null }) => string | number;
}[] = [
  { title: "cause", value: (f) => f.cause },
  { title: "likely", value: (f) => f.confidence ?? "ruled out" },
  { title: "because", value: (f) => f.why },
];

export function DiagnosisPanel({
  findings,
  checked,
  nextCheck,
}: {
  findings: Finding[];
  checked: string[];
  nextCheck?: string | null;
}) {
  const ruledOut = new Map(findings.flatMap((f) => f.ruled_out).map((r) => [r.cause, r.why]));
  for (const f of findings) ruledOut.delete(f.cause);
  return (
    <Panel title="Diagnosis" hint="most likely cause first, then causes ruled out" id="why-panel">
      {findings.length === 0 && ruledOut.size === 0 ? (
        <Empty title="No finding yet">
          {checked.length ? `Checked: ${checked.join(", ")}.` : "Collecting evidence."}
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
                        <summary>{plural(f.evidence.length, "fact")}</summary>
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
              {[...ruledOut].map(([cause, why]) => (
                <tr key={cause} class="out" data-testid="ruled-out">
                  <td>
                    <i class="mark" aria-hidden="true">
                      –
                    </i>
                    {humanise(cause)}
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
              columns={EXPORT_COLUMNS}
              rows={[...findings, ...[...ruledOut].map(([cause, why]) => ({ cause, why, confidence: null }))]}
            />
          </p>
        </div>
      )}
      {nextCheck && <p class="dim small apart">{nextCheck}</p>}
      {findings.length > 0 && checked.length > 0 && <p class="dim small">Checked: {checked.join(", ")}.</p>}
    </Panel>
  );
}

const MAX_FACTS = 20;

/** The name of an alert or series without its labels; the tooltip has them. */
const sourceName = (source: string) => /alertname="([^"]+)"/.exec(source)?.[1] ?? source.replace(/\s*\{.*$/s, "");

export function EvidencePanel({ detail }: { detail: Detail }) {
  const [isExpanded, setExpanded] = useState(false);
  const texts = new Set<string>();
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
    .filter((e) => !texts.has(e.text) && texts.add(e.text))
    .sort((a, b) => (a.at ?? "").localeCompare(b.at ?? ""));
  return (
    <Panel title="Evidence" hint={plural(lines.length, "fact")} id="evidence-panel">
      {lines.length === 0 ? (
        <Empty title="No evidence yet" />
      ) : (
        <ol class="evidence">
          {(isExpanded ? lines : lines.slice(0, MAX_FACTS)).map((e) => (
            <li key={e.text}>
              {e.at ? <Time at={e.at} millis /> : <span>–</span>}
              <b title={e.source}>{sourceName(e.source)}</b>
              <span>{e.text}</span>
            </li>
          ))}
        </ol>
      )}
      {!isExpanded && lines.length > MAX_FACTS && (
        <button type="button" class="plain" data-testid="more-facts" onClick={() => setExpanded(true)}>
          Show {lines.length - MAX_FACTS} more
        </button>
      )}
    </Panel>
  );
}
