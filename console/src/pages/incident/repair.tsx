// The plan of an incident and its repair: approval, progress and refusals.

import { useState } from "preact/hooks";
import { Chip, Empty, focus, Panel, Problem, Time } from "../../components/parts";
import { ask, useAsk } from "../../lib/api";
import { ago, words } from "../../lib/format";
import { set } from "../../lib/store";
import type { Detail, Receipt } from "../../lib/types";

interface Repair {
  id: string;
  state: string;
  mode: string;
  said: string;
  since: string;
  digest: string;
  step: number;
  is_running: boolean;
  is_held: boolean;
  actions: { id: string; kind: string; why: string }[];
  receipts: Receipt[];
  waits_for: string[];
  approved_by: string | null;
  started_at: string | null;
}

interface Told {
  mode_why?: string;
  why_not?: string;
  refusals?: { guard: string; text: string }[];
  repair: Repair | null;
  switch?: { is_stopped: boolean; stopped_by: string; stopped_why: string; is_tripped: boolean; tripped_why: string };
}

const TONE: Record<string, string> = { done: "ok", failed: "critical", rolled_back: "warning", rejected: "warning" };

const BY_PERSON = ["inspect", "hand_over"];

const UNDOABLE = ["planned", "approved", "cordoning", "draining"];

/** With `takes`, the Approve button gets the keyboard focus. */
export function PlanPanel({
  detail,
  version,
  done,
  takes,
}: {
  detail: Detail;
  version: unknown;
  done: () => void;
  takes: boolean;
}) {
  const { plan, diagnosis, incident } = detail;
  const steps = diagnosis?.findings[0]?.actions ?? [];
  const { answer: told, problem } = useAsk<Told>(`/api/incidents/${encodeURIComponent(incident.id)}/repair`, version);
  const repair = told?.repair;
  const began = repair && repair.state !== "planned" && repair.state !== "approved";
  const planned = plan ? `mode: ${repair?.mode ?? plan.mode} · not started` : "no plan";
  const hint = began ? `${repair.id} · ${words(repair.state)}` : planned;
  return (
    <Panel title="Plan" hint={hint} id="plan-panel">
      {problem && <Problem>{problem.message}</Problem>}
      {repair && <RepairState repair={repair} told={told} />}
      {plan && !began && (
        <p class="next" data-testid="plan-next">
          <b>Next</b> {plan.next_step}
        </p>
      )}
      {began ? (
        <RepairSteps repair={repair} />
      ) : plan ? (
        <ol class="plan">
          {plan.receipts.map((r) => (
            <li key={r.action.id} data-testid="plan-step" data-kind={r.action.kind} class={r.result}>
              <div>
                <b>{words(r.action.kind)}</b> {r.result !== "described" && <i>{words(r.result)}</i>}
                <p>{r.action.why}</p>
                <code>{r.text}</code>
              </div>
            </li>
          ))}
        </ol>
      ) : steps.length ? (
        <ol class="plan">
          {steps.map((s) => (
            <li key={s.do}>
              <div>
                {s.do}
                {s.command && <code>{s.command}</code>}
              </div>
            </li>
          ))}
        </ol>
      ) : (
        <Empty title="No plan yet">A plan needs a finding.</Empty>
      )}
      {repair ? (
        <Deeds repair={repair} done={done} incident={incident.id} takes={takes} />
      ) : (
        plan &&
        told?.why_not && (
          <p class="dim small" data-testid="why-not">
            Watchkeeper does not run this plan: {told.why_not}.
          </p>
        )
      )}
    </Panel>
  );
}

const seconds = (from: string, until: string) => {
  const ms = Date.parse(until) - Date.parse(from);
  return ms < 1000 ? `${ms} ms` : ago(ms);
};

function RepairSteps({ repair }: { repair: Repair }) {
  const came = new Map(repair.receipts.map((r) => [r.action.id, r]));
  return (
    <ol class="plan">
      {repair.actions.map((action, at) => {
        const receipt = came.get(action.id);
        const passed = at < repair.step || repair.state === "done";
        const current = at === repair.step && repair.is_running;
        const before = at > 0 ? came.get(repair.actions[at - 1].id)?.at : repair.started_at;
        return (
          <li
            key={action.id}
            data-testid="repair-step"
            data-kind={action.kind}
            class={
              passed ? "done" : receipt?.result === "failed" || receipt?.result === "refused" ? receipt.result : ""
            }
            aria-current={current ? "step" : undefined}
          >
            <div>
              <b>{words(action.kind)}</b>{" "}
              {current ? (
                <i>{words(repair.state)}</i>
              ) : (
                passed && receipt && before && <i>{seconds(before, receipt.at)}</i>
              )}
              <p>{action.why}</p>
              {receipt && <code>{receipt.text}</code>}
            </div>
          </li>
        );
      })}
    </ol>
  );
}

function RepairState({ repair, told }: { repair: Repair; told: Told }) {
  return (
    <div class="repair" data-testid="repair" data-state={repair.state}>
      <div class="chips">
        <Chip tone={TONE[repair.state] ?? "accent"}>
          {repair.state === "planned" && repair.mode === "ask" ? "pending approval" : words(repair.state)}
        </Chip>
        <Chip>
          since <Time at={repair.since} />
        </Chip>
        {repair.approved_by && <Chip>approved by {repair.approved_by}</Chip>}
        {repair.is_held && <Chip tone="warning">cordoned by Watchkeeper</Chip>}
      </div>
      {told.switch?.is_stopped && (
        <Problem>
          Repairs halted by {told.switch.stopped_by}: {told.switch.stopped_why}
        </Problem>
      )}
      {told.switch?.is_tripped && <Problem>Circuit breaker open: {told.switch.tripped_why}</Problem>}
      <p class="dim small">{repair.said}</p>
      {repair.is_running && repair.waits_for.length > 0 && (
        <ul class="dim small" data-testid="repair-waits">
          {repair.waits_for.map((one) => (
            <li key={one}>{one}</li>
          ))}
        </ul>
      )}
      {!repair.is_running &&
        !TONE[repair.state] &&
        told.refusals?.map((r) => (
          <p class="dim small" key={r.guard} data-testid="refusal">
            {words(r.guard)}: {r.text}
          </p>
        ))}
    </div>
  );
}

/** What a person may do: approve exactly this plan, reject it with a reason, mark a step as done, or retry. */
function Deeds({
  repair,
  done,
  incident,
  takes,
}: {
  repair: Repair;
  done: () => void;
  incident: string;
  takes: boolean;
}) {
  const [rejects, askWhy] = useState(false);
  const path = `/api/incidents/${incident}`;
  const say = (verb: string, body: unknown) => async (event?: Event) => {
    event?.preventDefault();
    try {
      await ask(`${path}/${verb}`, "POST", body);
      askWhy(false);
      done();
    } catch (problem) {
      set({ notice: (problem as Error).message });
    }
  };
  const reject = (event: Event) => {
    event.preventDefault();
    return say("reject", { why: String(new FormData(event.currentTarget as HTMLFormElement).get("why")) })();
  };
  const step = repair.actions[repair.step];
  const byPerson = repair.is_running && step && BY_PERSON.includes(step.kind);
  // One that began by itself under other settings waits as well.
  const waitsForYes = repair.waits_for.some((one) => one.startsWith("approval"));
  const mayApprove = (repair.state === "planned" && repair.mode === "ask") || waitsForYes;
  const mayReject = UNDOABLE.includes(repair.state) || repair.is_held || byPerson;
  const rest = repair.actions
    .slice(repair.step)
    .map((a) => words(a.kind))
    .join(", ");
  return (
    <>
      <div class="buttons">
        {mayApprove && (
          <button
            type="button"
            class="primary wrap"
            data-testid="approve"
            ref={takes ? focus : undefined}
            onClick={say("approve", { digest: repair.digest })}
          >
            Approve: {rest}
          </button>
        )}
        {byPerson && (
          <button type="button" class="primary" data-testid="step-done" onClick={say("step-done", {})}>
            Mark as done: {words(step.kind)}
          </button>
        )}
        {mayReject && (
          <button type="button" data-testid="reject" aria-expanded={rejects} onClick={() => askWhy(!rejects)}>
            Reject
          </button>
        )}
        {(repair.state === "failed" || repair.state === "rejected") && !repair.is_running && (
          <button type="button" data-testid="again" onClick={say("again", {})}>
            Retry
          </button>
        )}
      </div>
      {rejects && (
        <form onSubmit={reject}>
          <input
            name="why"
            required
            maxLength={4000}
            placeholder="Reason"
            aria-label="Reason"
            data-testid="reject-why"
            ref={focus}
          />
          <button type="submit" class="primary">
            Reject
          </button>
        </form>
      )}
    </>
  );
}
