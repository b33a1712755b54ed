// Drills: put a fault into a simulated fleet and watch it being found. Shown only where the fleet is simulated.

import { useEffect, useState } from "preact/hooks";
import { ask, set } from "./hub";

interface Scenario { name: string; title: string; truth?: { cause: string } }

export function Drills() {
  const [open, show] = useState(false);
  const [scenarios, keep] = useState<Scenario[] | null>(null);
  useEffect(() => {
    if (open && !scenarios) ask<Scenario[] | { scenarios: Scenario[] }>("/api/sim/scenarios").then(
      (found) => keep(Array.isArray(found) ? found : found.scenarios), (problem) => { show(false); set({ notice: problem.message }); });
  }, [open]);
  const inject = async (scenario: string) => {
    show(false);
    try {
      const fault = await ask<{ node: string; gpu: number | null }>("/api/sim/faults", "POST", { scenario });
      set({ notice: `Drill ${scenario} started on ${fault.node}${fault.gpu == null ? "" : ` GPU ${fault.gpu}`}` });
    } catch (problem) { set({ notice: (problem as Error).message }); }
  };
  return (
    <div class="menu" onKeyDown={(e) => e.key === "Escape" && show(false)}>
      <button type="button" class="nav" data-testid="drills" aria-haspopup="menu" aria-expanded={open} onClick={() => show(!open)}>Drills</button>
      {open && <div role="menu" data-testid="drills-menu"><p>Put a fault into the simulated fleet</p>
        {!scenarios ? <div class="bone" /> : scenarios.map((s) => <button type="button" role="menuitem" key={s.name} data-testid={`drill-${s.name}`} onClick={() => inject(s.name)}><b>{s.name}</b>{s.title}</button>)}</div>}
    </div>
  );
}
