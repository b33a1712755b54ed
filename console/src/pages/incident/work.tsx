// Actions on an incident: acknowledge, assign, silence, resolve, and the report.

import { useState } from "preact/hooks";
import { focusOnMount, Time } from "../../components/parts";
import { acknowledge, request } from "../../lib/api";
import { shortDuration } from "../../lib/format";
import { now, setState } from "../../lib/store";
import type { Detail, Silenced } from "../../lib/types";

const SPANS = [
  ["1h", "1 hour"],
  ["4h", "4 hours"],
  ["1d", "1 day"],
];

type FormName = "assign" | "silence" | "resolve" | null;

/** Send one change and reload the page, or show the error. */
async function send(path: string, body: unknown, notice: string, done: () => void, method = "POST"): Promise<boolean> {
  try {
    await request(path, method, body);
    setState({ notice });
    done();
    return true;
  } catch (problem) {
    setState({ notice: (problem as Error).message });
    return false;
  }
}

const field = (event: Event, name: string) =>
  String(new FormData(event.currentTarget as HTMLFormElement).get(name) ?? "").trim();

/** The assignee and the actions of a user, in one line below the title. */
export function IncidentActions({ detail: { incident, silenced_by }, done }: { detail: Detail; done: () => void }) {
  const [openForm, setOpenForm] = useState<FormName>(null);
  const path = `/api/incidents/${incident.id}`;
  const isOpen = incident.state !== "resolved";
  const submit = (notice: string, verb: string, body: (event: Event) => unknown) => async (event: Event) => {
    event.preventDefault();
    if (await send(`${path}/${verb}`, body(event), notice, done)) setOpenForm(null);
  };
  const toggle = (form: FormName) => () => setOpenForm(openForm === form ? null : form);
  return (
    <div class="work" data-testid="work-panel">
      {silenced_by && <SilencedLine silence={silenced_by} done={done} />}
      <div class="buttons first">
        <span class="who">{incident.assignee ? `Assigned to ${incident.assignee}` : "Unassigned"}</span>
        {incident.state === "open" && (
          <button
            type="button"
            class="primary"
            data-testid="acknowledge"
            onClick={() => acknowledge(incident.id).then(done)}
          >
            Acknowledge
          </button>
        )}
        {isOpen && (
          <button type="button" data-testid="assign" aria-expanded={openForm === "assign"} onClick={toggle("assign")}>
            Assign
          </button>
        )}
        {isOpen && !silenced_by && (
          <button
            type="button"
            data-testid="silence"
            aria-expanded={openForm === "silence"}
            onClick={toggle("silence")}
          >
            Silence
          </button>
        )}
        {isOpen && (
          <button
            type="button"
            data-testid="resolve"
            aria-expanded={openForm === "resolve"}
            onClick={toggle("resolve")}
          >
            Resolve
          </button>
        )}
        <a class="button" data-testid="export" data-export download={`${incident.id}.md`} href={`${path}/report`}>
          Report
        </a>
        <a
          class="button"
          data-testid="export-json"
          download={`${incident.id}.json`}
          href={`${path}/report?format=json`}
        >
          JSON
        </a>
      </div>
      {openForm === "assign" && (
        <form onSubmit={submit(`${incident.id} assigned`, "assign", (e) => ({ to: field(e, "to") }))}>
          <input
            name="to"
            required
            maxLength={200}
            placeholder="Assign to"
            aria-label="Assign to"
            defaultValue={incident.assignee ?? ""}
            data-testid="assign-to"
            ref={focusOnMount}
          />
          <button type="submit" class="primary">
            Assign
          </button>
        </form>
      )}
      {openForm === "silence" && (
        <form
          class="tall"
          onSubmit={submit(`${incident.place_name} silenced`, "silence", (e) => ({
            for: field(e, "for"),
            reason: field(e, "reason"),
          }))}
        >
          <p class="dim small">Mutes notifications for {incident.place_name}. Incidents still open.</p>
          <div class="row">
            <select name="for" aria-label="Duration" data-testid="silence-for">
              {SPANS.map(([value, text]) => (
                <option key={value} value={value}>
                  {text}
                </option>
              ))}
            </select>
            <input
              name="reason"
              required
              maxLength={1000}
              placeholder="Reason (visible to all users)"
              aria-label="Reason"
              data-testid="silence-reason"
              ref={focusOnMount}
            />
            <button type="submit" class="primary">
              Silence
            </button>
          </div>
        </form>
      )}
      {openForm === "resolve" && (
        <form onSubmit={submit(`${incident.id} resolved`, "resolve", (e) => ({ why: field(e, "why") }))}>
          <input
            name="why"
            required
            maxLength={4000}
            placeholder="How was it resolved?"
            aria-label="How it was resolved"
            ref={focusOnMount}
          />
          <button type="submit" class="primary">
            Resolve
          </button>
        </form>
      )}
    </div>
  );
}

function SilencedLine({ silence, done }: { silence: Silenced; done: () => void }) {
  const end = () => send(`/api/silences/${encodeURIComponent(silence.id)}`, undefined, "Silence ended", done, "DELETE");
  return (
    <p class="silenced" data-testid="silenced">
      <b>Silenced</b> by {silence.author} until <Time at={silence.ends_at} full /> (
      {shortDuration(Date.parse(silence.ends_at) - now())} left): {silence.reason}
      <button type="button" class="plain" data-testid="unsilence" onClick={end}>
        End silence
      </button>
    </p>
  );
}
