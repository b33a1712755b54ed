// Keyboard shortcuts, and the dialog that lists them.

import { useEffect, useRef } from "preact/hooks";
import { acknowledge } from "../lib/api";
import { navigate, type PageRow } from "../lib/router";
import { Panel } from "./parts";

const SHORTCUTS: [string, string][] = [
  ["/", "search"],
  ["j k", "next or previous row"],
  ["Enter", "open the row"],
  ["a", "acknowledge the incident"],
  ["n", "write a note"],
  ["e", "export the table or report"],
  ["t", "switch between dark and light theme"],
  ["?", "show keyboard shortcuts"],
  ["Esc", "close"],
];
const LEADER_MS = 2000;

/** Move the keyboard focus to another row; the focus is the selection, so a redraw keeps it. */
function moveFocus(by: number): void {
  const rows = [...document.querySelectorAll<HTMLElement>("[data-row]")];
  const index = rows.indexOf((document.activeElement as Element)?.closest("[data-row]") as HTMLElement);
  const next = rows[Math.min(rows.length - 1, Math.max(0, index + by))];
  next?.focus({ preventScroll: true });
  next?.scrollIntoView({ block: "nearest" });
}
/** The export button of the panel with the focus, or else the first of the page. */
const findExportButton = () =>
  (document.activeElement as Element)?.closest(".panel")?.querySelector<HTMLElement>("[data-export]") ??
  document.querySelector<HTMLElement>("[data-export]");

export function useKeys(
  address: URL,
  pages: PageRow[],
  setHelp: (f: (shown: boolean) => boolean) => void,
  toggle: () => void,
): void {
  const leader = useRef(0);
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.key === "Escape") setHelp(() => false);
      if (
        target.closest("input, select, textarea, [contenteditable]") ||
        event.ctrlKey ||
        event.metaKey ||
        event.altKey
      )
        return;
      // The time of the key press: a busy page handles it later.
      const isAfterLeader = leader.current > 0 && event.timeStamp - leader.current < LEADER_MS;
      const page = isAfterLeader && pages.find((p) => p.key === event.key);
      leader.current = event.key === "g" ? event.timeStamp : 0;
      const row = target.closest<HTMLElement>("[data-row]");
      const incidentId = /^\/incidents\/(.+)/.exec(address.pathname)?.[1];
      const actions: Record<string, (() => void) | undefined> = {
        "/": () => document.getElementById("search")?.focus(),
        j: () => moveFocus(1),
        k: () => moveFocus(-1),
        Enter: row === target && row.dataset.row ? () => navigate(row.dataset.row!) : undefined,
        a: () => {
          const id = row?.dataset.incident ?? incidentId;
          if (id) acknowledge(decodeURIComponent(id));
        },
        n: () => {
          const field = document.getElementById("note");
          if (field) field.focus();
          else if (row?.dataset.incident) navigate(`/incidents/${row.dataset.incident}?note=1`);
        },
        e: () => findExportButton()?.click(),
        t: toggle,
        "?": () => setHelp((shown) => !shown),
      };
      const action = page ? () => navigate(page.path) : actions[event.key];
      if (action) {
        event.preventDefault();
        action();
      }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });
}

export function KeysDialog({ pages, close }: { pages: PageRow[]; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  const row = ([key, text]: [string, string]) => (
    <tr key={key}>
      <th scope="row">
        {key.split(" ").map((k) => (
          <kbd key={k}>{k}</kbd>
        ))}
      </th>
      <td>{text}</td>
    </tr>
  );
  return (
    <dialog
      ref={dialog}
      class="dialog"
      aria-label="Keyboard shortcuts"
      data-testid="keys"
      onClose={close}
      onClick={(e) => e.target === e.currentTarget && close()}
    >
      <Panel
        title="Keyboard shortcuts"
        side={
          <button type="button" class="plain" onClick={close}>
            Close
          </button>
        }
      >
        <div class="halves">
          <table class="facts">
            <tbody>{SHORTCUTS.map(row)}</tbody>
          </table>
          <table class="facts">
            <tbody>{pages.map((p) => row([`g ${p.key}`, p.name]))}</tbody>
          </table>
        </div>
      </Panel>
    </dialog>
  );
}
