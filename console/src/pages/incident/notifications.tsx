// Notifications of an incident, and its silence.

import { Chip, describeSilence, Empty, Panel, Problem, Skeleton, Time } from "../../components/parts";
import { useRequest } from "../../lib/api";
import { humanise, plural, shortDuration } from "../../lib/format";
import { now } from "../../lib/store";
import type { Notice, Silenced } from "../../lib/types";

export const SilencedChip = ({ silence }: { silence: Silenced | null | undefined }) =>
  silence ? (
    <Chip tone="warning" title={describeSilence(silence)}>
      silenced {shortDuration(Date.parse(silence.ends_at) - now())}
    </Chip>
  ) : null;

const STATE: Record<Notice["state"], string> = {
  waiting: "pending",
  sending: "sending",
  sent: "sent",
  given_up: "failed",
};

export function NotificationsPanel({ id, version }: { id: string; version: unknown }) {
  const { answer, problem } = useRequest<{ notices: Notice[] }>(
    `/api/incidents/${encodeURIComponent(id)}/notices`,
    version,
  );
  const notices = answer?.notices;
  return (
    <Panel
      title="Notifications"
      hint={notices && notices.length > 0 && plural(notices.length, "notification")}
      id="notifications-panel"
    >
      {problem && <Problem>{problem.message}</Problem>}
      {!notices ? (
        !problem && <Skeleton lines={2} />
      ) : notices.length === 0 ? (
        <Empty title="No notifications">
          To send notifications, set <code>[notify] via</code> to <code>receivers</code> or <code>alertmanager</code>.
        </Empty>
      ) : (
        <ol class="journal">
          {notices.map((n) => (
            <li key={n.id} data-testid="notice-row" data-state={n.state}>
              <Time at={n.sent_at ?? n.due_at} /> <b>{n.receiver}</b> {STATE[n.state]}: {humanise(n.occasion)}
              {(n.answer || n.tries > 1) && (
                <p class="dim">{[n.tries > 1 && `${n.tries} attempts`, n.answer].filter(Boolean).join(", ")}</p>
              )}
            </li>
          ))}
        </ol>
      )}
    </Panel>
  );
}
