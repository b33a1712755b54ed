// The plan of an incident and its repair: approval, progress and refusals.

import { useState } from "preact/hooks";
import { Chip, Empty, focusOnMount, Panel, Problem, Time } from "../../components/parts";
import { request, useRequest } from "../../lib/api";
import { humanise, shortDuration } from "../../lib/format";
import { setState } from "../../lib/store";
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
  activity: string;
  stopped_by: string | null;
  actions: { id: string; kind: string; why: string }[];
  receipts: Receipt[];
  waits_for: string[];
  approved_by: string | null;
  started_at: string | null;
}

interface RepairAnswer {
  mode_why?: string;
  why_not?: string;
  refusals?: { guard: string; text: string }[];
  repair: Repair | null;
  switch?: { is_stopped: boolean; stopped_by: string; stopped_why: string; is_tripped: boolean; tripped_why: string };
}

const TONE: Record<string, string> = { done: "ok", failed: "critical", rolled_back: "warning", rejected: "warning" };

const MANUAL_STEPS = ["inspect", "hand_over"];

const REJECTABLE_STATES = ["planned", "approved", "cordoning", "draining"];

/** With `focusesApprove`, the Approve button gets the keyboard focus. */
export function PlanPanel({
  detail,
  version,
  done,
  focusesApprove: takes,
}: {
  detail: Detail;
  version: unknown;
  done: () => void;
  focusesApprove: boolean;
}) {
  const { plan, diagnosis, incident } = detail;
  const steps = diagnosis?.findings[0]?.actions ?? [];
  const { answer: repairAnswer, problem } = useRequest<RepairAnswer>(
    `/api/incidents/${encodeURIComponent(incident.id)}/repair`,
    version,
  );
  const repair = repairAnswer?.repair;
  const hasStarted = repair && repair.state !== "planned" && repair.state !== "approved";
  const planned = plan ? `mode: ${repair?.mode ?? plan.mode} · not started` : "no plan";
  const hint = hasStarted ? `${repair.id} · ${humanise(repair.state)}` : planned;
  return (
    <Panel title="Plan" hint={hint} id="plan-panel">
      {problem && <Problem>{problem.message}</Problem>}
      {repair && <RepairState repair={repair} repairAnswer={repairAnswer} />}
      {plan && !hasStarted && (
        <p class="next" data-testid="plan-next">
          <b>Next</b> {plan.next_step}
        </p>
      )}
      {hasStarted ? (
        <RepairSteps repair={repair} />
      ) : plan ? (
        <ol class="plan">
          {plan.receipts.map((r) => (
            <li key={r.action.id} data-testid="plan-step" data-kind={r.action.kind} class={r.result}>
              <div>
                <b>{humanise(r.action.kind)}</b> {r.result !== "described" && <i>{humanise(r.result)}</i>}
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
        <RepairButtons repair={repair} done={done} incident={incident.id} focusesApprove={takes} />
      ) : (
        plan &&
        repairAnswer?.why_not && (
          <p class="dim small" data-testid="why-not">
            Watchkeeper does not run this plan: {repairAnswer.why_not}.
          </p>
        )
      )}
    </Panel>
  );
}

const seconds = (from: string, until: string) => {
  const ms = Date.parse(until) - Date.parse(from);
  return ms < 1000 ? `${ms} ms` : shortDuration(ms);
};

/** A step is in progress until its effect is observed, not until its call returned. */
const describeProgress = (repair: Repair) =>
  repair.stopped_by ? "stopped" : repair.state === "acting" ? "in progress" : humanise(repair.state);

function RepairSteps({ repair }: { repair: Repair }) {
  const receipts = new Map(repair.receipts.map((r) => [r.action.id, r]));
  return (
    <ol class="plan">
      {repair.actions.map((action, at) => {
        const receipt = receipts.get(action.id);
        const isDone = at < repair.step || repair.state === "done";
        const isCurrent = at === repair.step && repair.is_running;
        const startedAt = at > 0 ? receipts.get(repair.actions[at - 1].id)?.at : repair.started_at;
        return (
          <li
            key={action.id}
            data-testid="repair-step"
            data-kind={action.kind}
            class={
              isDone ? "done" : receipt?.result === "failed" || receipt?.result === "refused" ? receipt.result : ""
            }
            aria-current={isCurrent ? "step" : undefined}
          >
            <div>
              <b>{humanise(action.kind)}</b>{" "}
              {isCurrent ? (
                <i>{describeProgress(repair)}</i>
              ) : (
                isDone && receipt && startedAt && <i>{seconds(startedAt, receipt.at)}</i>
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

function RepairState({ repair, repairAnswer }: { repair: Repair; repairAnswer: RepairAnswer }) {
  return (
    <div class="repair" data-testid="repair" data-state={repair.state}>
      <div class="chips">
        <Chip tone={repair.stopped_by ? "warning" : (TONE[repair.state] ?? "accent")}>
          {repair.state === "planned" && repair.mode === "ask"
            ? "pending approval"
            : repair.is_running
              ? repair.activity
              : humanise(repair.state)}
        </Chip>
        <Chip>
          since <Time at={repair.since} />
        </Chip>
        {repair.approved_by && <Chip>approved by {repair.approved_by}</Chip>}
        {repair.is_held && <Chip tone="warning">cordoned by Watchkeeper</Chip>}
      </div>
      {repairAnswer.switch?.is_stopped && (
        <Problem>
          Repairs halted by {repairAnswer.switch.stopped_by}: {repairAnswer.switch.stopped_why}
        </Problem>
      )}
      {repairAnswer.switch?.is_tripped && <Problem>Circuit breaker open: {repairAnswer.switch.tripped_why}</Problem>}
      <p class="dim small">{repair.said}</p>
      {repair.is_running && repair.waits_for.length > 0 && (
        <ul class="dim small" data-testid="repair-waits">
          {repair.waits_for.map((requirement) => (
            <li key={requirement}>{requirement}</li>
          ))}
        </ul>
      )}
      {!repair.is_running &&
        !TONE[repair.state] &&
        repairAnswer.refusals?.map((r) => (
          <p class="dim small" key={r.guard} data-testid="refusal">
            {humanise(r.guard)}: {r.text}
          </p>
        ))}
    </div>
  );
}

/** The actions of a user: approve exactly this plan, reject it with a reason, mark a manual step as done, or retry. */
function RepairButtons({
  repair,
  done,
  incident,
  focusesApprove: takes,
}: {
  repair: Repair;
  done: () => void;
  incident: string;
  focusesApprove: boolean;
}) {
  const [asked, setAsked] = useState<"reject" | "stop" | null>(null);
  const path = `/api/incidents/${incident}`;
  const sendAction = (verb: string, body: unknown) => async (event?: Event) => {
    event?.preventDefault();
    try {
      await request(`${path}/${verb}`, "POST", body);
      setAsked(null);
      done();
    } catch (problem) {
      setState({ notice: (problem as Error).message });
    }
  };
  const sendReason = (event: Event) => {
    event.preventDefault();
    return sendAction(asked!, { why: String(new FormData(event.currentTarget as HTMLFormElement).get("why")) })();
  };
  const step = repair.actions[repair.step];
  const isManualStep = repair.is_running && step && MANUAL_STEPS.includes(step.kind);
  // A repair that started without approval may need it after a change of settings.
  const waitsForApproval = repair.waits_for.some((requirement) => requirement.startsWith("approval"));
  const mayApprove = (repair.state === "planned" && repair.mode === "ask") || waitsForApproval;
  const mayReject = REJECTABLE_STATES.includes(repair.state) || repair.is_held || isManualStep;
  const isStopped = repair.stopped_by != null && (repair.is_running || repair.is_held);
  const remainingSteps = repair.actions
    .slice(repair.step)
    .map((a) => humanise(a.kind))
    .join(", ");
  return (
    <>
      <div class="buttons">
        {mayApprove && (
          <button
            type="button"
            class="primary wrap"
            data-testid="approve"
            ref={takes ? focusOnMount : undefined}
            onClick={sendAction("approve", { digest: repair.digest })}
          >
            Approve: {remainingSteps}
          </button>
        )}
        {isManualStep && (
          <button type="button" class="primary" data-testid="step-done" onClick={sendAction("step-done", {})}>
            Mark as done: {humanise(step.kind)}
          </button>
        )}
        {repair.is_running && !isStopped && (
          <button
            type="button"
            data-testid="stop"
            title="Stop before the next step"
            aria-expanded={asked === "stop"}
            onClick={() => setAsked(asked === "stop" ? null : "stop")}
          >
            Stop
          </button>
        )}
        {isStopped && (
          <button type="button" class="primary" data-testid="resume" onClick={sendAction("resume", {})}>
            Resume
          </button>
        )}
        {mayReject && (
          <button
            type="button"
            data-testid="reject"
            aria-expanded={asked === "reject"}
            onClick={() => setAsked(asked === "reject" ? null : "reject")}
          >
            Reject
          </button>
        )}
        {(repair.state === "failed" || repair.state === "rejected") && !repair.is_running && (
          <button type="button" data-testid="again" onClick={sendAction("again", {})}>
            Retry
          </button>
        )}
      </div>
      {asked && (
        <form onSubmit={sendReason}>
          <input
            name="why"
            required
            maxLength={4000}
            placeholder="Reason"
            aria-label="Reason"
            data-testid={`${asked}-why`}
            ref={focusOnMount}
          />
          <button type="submit" class="primary">
            {asked === "stop" ? "Stop before the next step" : "Reject"}
          </button>
        </form>
      )}
    </>
  );
}
