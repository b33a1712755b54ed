// Inject a fault into the simulated fleet.

import { useEffect, useRef, useState } from "preact/hooks";
import { Level, Panel, Problem } from "../../components/parts";
import { ask } from "../../lib/api";
import { words } from "../../lib/format";
import { set, useHub } from "../../lib/store";
import type { Severity } from "../../lib/types";

export interface Scenario {
  name: string;
  title: string;
  truth: { cause: string; action: string; severity: Severity; place: string };
}

export function Inject({ scenario, done }: { scenario: Scenario; done: () => void }) {
  const { fleet } = useHub();
  const [busy, work] = useState(false);
  const [problem, say] = useState("");
  const panel = useRef<HTMLFormElement>(null);
  useEffect(() => panel.current?.scrollIntoView({ block: "nearest" }), []);
  const send = async (event: Event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const node = String(form.get("node") ?? "").trim();
    const gpu = String(form.get("gpu") ?? "");
    work(true);
    say("");
    try {
      const fault = await ask<{ node: string; gpu: number | null }>("/api/sim/faults", "POST", {
        scenario: scenario.name,
        ...(node && { node }),
        ...(gpu && { gpu: Number(gpu) }),
      });
      set({ notice: `Drill ${scenario.name} started on ${fault.node}${fault.gpu == null ? "" : ` GPU ${fault.gpu}`}` });
      done();
    } catch (error) {
      say((error as Error).message);
    }
    work(false);
  };
  return (
    <Panel
      title={scenario.title}
      id="inject-panel"
      hint={scenario.name}
      side={<Level severity={scenario.truth.severity} />}
    >
      <p class="dim">
        Expected cause: <b>{words(scenario.truth.cause)}</b>. Place: {scenario.truth.place}. First step:{" "}
        {words(scenario.truth.action)}.
      </p>
      <form class="inject" ref={panel} onSubmit={send}>
        <label>
          Node <input name="node" list="nodes" placeholder="any" aria-label="Node" autocomplete="off" />
        </label>
        <datalist id="nodes">
          {fleet?.nodes.slice(0, 500).map((n) => (
            <option key={n.name} value={n.name} />
          ))}
        </datalist>
        {scenario.truth.place === "gpu" && (
          <label>
            GPU <input name="gpu" type="number" class="number" min={0} max={15} placeholder="any" aria-label="GPU" />
          </label>
        )}
        <button type="submit" class="primary" disabled={busy} data-testid="inject">
          {busy ? "Injecting…" : "Inject"}
        </button>
      </form>
      {problem && <Problem>{problem}</Problem>}
    </Panel>
  );
}
