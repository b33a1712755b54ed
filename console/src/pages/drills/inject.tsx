// Inject a fault into the simulated fleet.

import { useEffect, useRef, useState } from "preact/hooks";
import { Panel, Problem, SeverityChip } from "../../components/parts";
import { request } from "../../lib/api";
import { humanise } from "../../lib/format";
import { setState, useHub } from "../../lib/store";
import type { Severity } from "../../lib/types";

export interface Scenario {
  name: string;
  title: string;
  truth: { cause: string; action: string; severity: Severity; place: string };
}

export function Inject({ scenario, done }: { scenario: Scenario; done: () => void }) {
  const { fleet } = useHub();
  const [isInjecting, setInjecting] = useState(false);
  const [problem, setProblem] = useState("");
  const panel = useRef<HTMLFormElement>(null);
  useEffect(() => panel.current?.scrollIntoView({ block: "nearest" }), []);
  const send = async (event: Event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const node = String(form.get("node") ?? "").trim();
    const gpu = String(form.get("gpu") ?? "");
    setInjecting(true);
    setProblem("");
    try {
      const fault = await request<{ node: string; gpu: number | null }>("/api/sim/faults", "POST", {
        scenario: scenario.name,
        ...(node && { node }),
        ...(gpu && { gpu: Number(gpu) }),
      });
      setState({
        notice: `Drill ${scenario.name} started on ${fault.node}${fault.gpu == null ? "" : ` GPU ${fault.gpu}`}`,
      });
      done();
    } catch (error) {
      setProblem((error as Error).message);
    }
    setInjecting(false);
  };
  return (
    <Panel
      title={scenario.title}
      id="inject-panel"
      hint={scenario.name}
      side={<SeverityChip severity={scenario.truth.severity} />}
    >
      <p class="dim">
        Expected cause: <b>{humanise(scenario.truth.cause)}</b>. Place: {scenario.truth.place}. First step:{" "}
        {humanise(scenario.truth.action)}.
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
        <button type="submit" class="primary" disabled={isInjecting} data-testid="inject">
          {isInjecting ? "Injecting…" : "Inject"}
        </button>
      </form>
      {problem && <Problem>{problem}</Problem>}
    </Panel>
  );
}
