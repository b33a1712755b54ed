// How often each cause was correct, in drills and as rated by users.

import { Empty, Panel, Time } from "../../components/parts";
import { type Column, Table } from "../../components/table";
import { useRequest } from "../../lib/api";
import { count, humanise, percent } from "../../lib/format";

interface Scored {
  cause: string;
  drills: number;
  found: number;
  right: number;
  right_share: number;
  instead: string[];
}

interface Judged {
  cause: string;
  diagnosed: number;
  judged: number;
  right: number;
  right_share: number | null;
  instead: string[];
}

interface Causes {
  cause: string;
  own?: Judged;
  drill?: Scored;
}

export function Accuracy({ address, again }: { address: URL; again: unknown }) {
  const own = useRequest<{ accuracy: Judged[] }>("/api/accuracy", again);
  const drills = useRequest<{ drills: Scored[]; game_day_at: string | null }>("/api/drills/accuracy", again);
  const names = [...new Set([...(drills.answer?.drills ?? []), ...(own.answer?.accuracy ?? [])].map((c) => c.cause))];
  const rows =
    own.answer &&
    drills.answer &&
    names.map((cause) => ({
      cause,
      own: own.answer!.accuracy.find((c) => c.cause === cause),
      drill: drills.answer!.drills.find((c) => c.cause === cause),
    }));
  const day = drills.answer?.game_day_at;
  return (
    <Panel
      title="Diagnosis accuracy"
      id="accuracy-panel"
      hint={
        day ? (
          <>
            including the game day of <Time at={day} />
          </>
        ) : (
          "in drills, and as rated by users"
        )
      }
    >
      <Table
        id="accuracy"
        caption="How often each cause was correct"
        rows={rows}
        problem={own.problem ?? drills.problem}
        rowKey={(r) => r.cause}
        rowTestId="accuracy-row"
        address={address}
        param="causes"
        columns={ACCURACY}
        empty={
          <Empty title="No rated cause yet">
            Run <code>watchkeeper drill --tell</code>, or confirm or correct the cause of an incident.
          </Empty>
        }
      />
    </Panel>
  );
}

export const shareOf = (right: number, all: number) =>
  all ? (
    <>
      {percent((100 * right) / all)}
      <small class="plain">
        {count(right)} of {count(all)}
      </small>
    </>
  ) : (
    <span class="dim">–</span>
  );

const ACCURACY: Column<Causes>[] = [
  { id: "cause", title: "Cause", value: (r) => r.cause, cell: (r) => <b class="strong">{humanise(r.cause)}</b> },
  {
    id: "drills",
    title: "Correct in drills",
    numeric: true,
    value: (r) => r.drill?.right_share,
    cell: (r) => shareOf(r.drill?.right ?? 0, r.drill?.drills ?? 0),
  },
  {
    id: "people",
    title: "Confirmed by users",
    numeric: true,
    value: (r) => r.own?.right_share,
    cell: (r) => shareOf(r.own?.right ?? 0, r.own?.judged ?? 0),
  },
  {
    id: "named",
    title: "Diagnosed",
    numeric: true,
    hint: "incidents of this fleet with this cause",
    value: (r) => r.own?.diagnosed ?? 0,
    cell: (r) => count(r.own?.diagnosed ?? 0),
  },
  {
    id: "instead",
    title: "Actual cause",
    minor: true,
    value: (r) => actualCauses(r).join(),
    cell: (r) => actualCauses(r).map(humanise).join(", ") || <span class="dim">–</span>,
  },
];

const actualCauses = (r: Causes) => [...new Set([...(r.drill?.instead ?? []), ...(r.own?.instead ?? [])])];
