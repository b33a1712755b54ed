// What-if: replay recorded jobs on the fleet, before and after a change.

import { useState } from "preact/hooks";
import { Choice, Facts, Panel, Problem, Select } from "../../components/parts";
import { Table } from "../../components/table";
import { request } from "../../lib/api";
import { count, dateTime, percentOf, plural } from "../../lib/format";
import { param, setParam } from "../../lib/router";
import { formatWait } from "./capacity_figures";

interface Spread {
  jobs: number;
  mean: number | null;
  p50: number | null;
  p95: number | null;
  max: number | null;
}

interface WhatIf {
  layout: string;
  since: number;
  until: number;
  change: string;
  assumes: string[];
  jobs: Record<string, number>;
  recorded: { wait: Spread };
  before: Side;
  after: Side;
  unknown_models: Record<string, number>;
}

interface Side {
  gpus: number;
  utilisation: number | null;
  peak_gpus: number;
  wait: Spread & { by_gpus: Record<string, Spread> };
  never_fits: { jobs: number; gpus: number[] };
}

const WINDOWS = [
  ["6h", "6 hours"],
  ["1d", "day"],
  ["7d", "week"],
  ["2w", "2 weeks"],
] as const;

export function ReplayPanel({ address }: { address: URL }) {
  const [jobs, setJobs] = useState<{ name: string; text: string } | null>(null);
  const [result, setResult] = useState<WhatIf | null>(null);
  const [problem, setProblem] = useState("");
  const [isRunning, setRunning] = useState(false);
  const add = Number(param(address, "add", "0")) || 0;
  const policy = param(address, "policy", "backfill");
  const window = param(address, "window", "1d");
  const run = async (event: Event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const racks = String(form.get("racks") ?? "")
      .split(/[\s,]+/)
      .filter(Boolean);
    setRunning(true);
    setProblem("");
    try {
      setResult(
        await request<WhatIf>("/api/capacity/whatif", "POST", {
          jobs: jobs?.text,
          window,
          add: Math.max(0, add),
          remove: Math.max(0, -add),
          remove_racks: racks,
          policy,
        }),
      );
    } catch (error) {
      setProblem((error as Error).message);
      setResult(null);
    }
    setRunning(false);
  };
  return (
    <Panel title="What if: replay recorded jobs" id="replay-panel" hint="on this fleet, before and after a change">
      <form class="replay" onSubmit={run}>
        {!jobs && (
          <label>
            this hub's jobs of the last{" "}
            <Select
              label="how long"
              id="replay-window"
              value={window}
              options={WINDOWS}
              choose={(w) => setParam("window", w === "1d" ? null : w)}
            />
          </label>
        )}
        <label class="file">
          or jobs from a file{" "}
          <input
            type="file"
            accept=".csv,.txt,text/*"
            aria-label="Recorded jobs, from sacct or as CSV"
            data-testid="jobs-file"
            onChange={async (e) => {
              const file = e.currentTarget.files?.[0];
              setJobs(file ? { name: file.name, text: await file.text() } : null);
            }}
          />
        </label>
        <label>
          add GPUs{" "}
          <input
            type="number"
            class="number"
            step={8}
            value={String(add)}
            aria-label="GPUs to add in the replay; a negative number removes GPUs"
            onInput={(e) => setParam("add", e.currentTarget.value === "0" ? null : e.currentTarget.value)}
          />
        </label>
        <label>
          remove racks <input name="racks" class="racks" placeholder="r01 r02" aria-label="Racks to remove" />
        </label>
        <Choice
          label="scheduling order"
          options={[
            ["backfill", "backfill"],
            ["fifo", "first in, first out"],
          ]}
          value={policy}
          choose={(p) => setParam("policy", p === "backfill" ? null : p)}
        />
        <button type="submit" class="primary" disabled={isRunning} data-testid="replay-run">
          {isRunning ? "Replaying…" : "Replay"}
        </button>
      </form>
      {!jobs && (
        <p class="dim small">
          For months of jobs with their wait times, export them from Slurm:{" "}
          <code>sacct -aDXP -S 2026-10-01 -o JobID,Submit,Start,End,AllocTRES</code>
        </p>
      )}
      {problem && <Problem>{problem}</Problem>}
      {result && (
        <div data-testid="replay-answer">
          <p class="answer">
            {result.change}: p95 wait {formatWait(result.before.wait.p95)} → <b>{formatWait(result.after.wait.p95)}</b>,
            utilisation {percentOf(result.before.utilisation)} → {percentOf(result.after.utilisation)}.
          </p>
          <Table
            id="replay"
            caption="Wait before and after"
            rows={Object.keys(result.before.wait.by_gpus)}
            rowKey={(s) => s}
            empty={null}
            columns={[
              { id: "shape", title: "Job size", value: (s) => s, cell: (s) => `${s} GPUs` },
              { id: "jobs", title: "Jobs", numeric: true, value: (s) => result.before.wait.by_gpus[s].jobs },
              {
                id: "before",
                title: "p95 wait before",
                numeric: true,
                value: (s) => result.before.wait.by_gpus[s].p95,
                cell: (s) => formatWait(result.before.wait.by_gpus[s].p95),
              },
              {
                id: "after",
                title: "p95 wait after",
                numeric: true,
                value: (s) => result.after.wait.by_gpus[s]?.p95,
                cell: (s) => formatWait(result.after.wait.by_gpus[s]?.p95 ?? null),
              },
            ]}
          />
          <Facts
            rows={[
              ["Replayed", describeReplay(result)],
              [
                "Recorded",
                result.recorded.wait.jobs
                  ? `p95 wait ${formatWait(result.recorded.wait.p95)} over ${plural(result.recorded.wait.jobs, "job")}`
                  : null,
              ],
              [
                "Never fits",
                result.after.never_fits.jobs
                  ? `${plural(result.after.never_fits.jobs, "job")} of ${result.after.never_fits.gpus.join(", ")} GPUs`
                  : null,
              ],
              ["Assumptions", result.assumes.join("; ")],
            ]}
          />
        </div>
      )}
    </Panel>
  );
}

function describeReplay({ jobs, layout, since, until }: WhatIf): string {
  const all = plural(jobs.jobs, "job");
  if (layout !== "this hub") return `${all} from a file (${layout})`;
  const [from, to] = [since, until].map((at) => dateTime(new Date(1000 * at).toISOString()));
  const waited = jobs.wait_known ? count(jobs.wait_known) : "none";
  return `${all} recorded by this hub from ${from} to ${to}; wait time known for ${waited}`;
}
