// The table of all pages: sort by the headers, move with j and k, open with Enter, export with e.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { RequestError } from "../lib/api";
import { count } from "../lib/format";
import { navigate, param, setParam } from "../lib/router";
import { RequestProblem, Skeleton } from "./parts";

type Value = string | number | null | undefined;
export interface Column<T> {
  id: string;
  title: string;
  /** The value to sort by and to export; without `cell` it is also the value shown. */
  value: (row: T) => Value;
  cell?: (row: T) => ComponentChildren;
  /** Align right, and sort largest first. */
  numeric?: boolean;
  /** Tooltip of the header. */
  hint?: string;
  /** Hidden first on a narrow screen. */
  minor?: boolean;
  class?: string;
}
interface Props<T> {
  /** Test id, and the name of the exported file. */
  id: string;
  columns: Column<T>[];
  /** Undefined while loading: a skeleton is shown. */
  rows: T[] | undefined;
  rowKey: (row: T) => string;
  /** Shown if there are no rows. */
  empty: ComponentChildren;
  problem?: RequestError;
  /** The page that a click or Enter opens. */
  href?: (row: T) => string;
  /** Instead of `href`: select a row on this page; `chosen` is the key of the selected row. */
  choose?: (row: T) => void;
  chosen?: string;
  /** If set, the sort order is in the URL as `?sort=-cost`; `param` replaces `sort` if a page has two tables. */
  address?: URL;
  param?: string;
  /** The default order: a column id, with `-` for descending. Undefined keeps the order of `rows`. */
  sort?: string;
  /** Rows shown before "Show more". */
  maxRows?: number;
  /** The incident of a row, for the key `a` (acknowledge). */
  incident?: (row: T) => string | undefined;
  rowTestId?: string;
  class?: string;
  caption: string;
}

export function Table<T>(p: Props<T>) {
  const [localSort, setLocalSort] = useState(p.sort ?? "");
  const [isExpanded, setExpanded] = useState(false);
  const name = p.param ?? "sort";
  const sort = p.address ? param(p.address, name, p.sort) : localSort;
  const columnId = sort.replace(/^-/, "");
  const isDescending = sort.startsWith("-");
  const column = p.columns.find((c) => c.id === columnId);
  const rows =
    column && p.rows ? [...p.rows].sort((a, b) => compare(column.value(a), column.value(b), isDescending)) : p.rows;
  const most = p.maxRows ?? 200;
  const shown = isExpanded ? rows : rows?.slice(0, most);
  const hiddenCount = (rows?.length ?? 0) - (shown?.length ?? 0);
  const toggleSort = (c: Column<T>) => {
    const firstSort = c.numeric ? `-${c.id}` : c.id;
    const secondSort = c.numeric ? c.id : `-${c.id}`;
    const nextSort = sort === firstSort ? secondSort : sort === secondSort && !p.sort ? "" : firstSort;
    if (p.address) setParam(name, nextSort === p.sort ? null : nextSort);
    else setLocalSort(nextSort);
  };
  const open = (row: T) => (p.choose ? p.choose(row) : p.href && navigate(p.href(row)));
  return (
    <>
      <RequestProblem problem={p.problem} isStale={Boolean(rows)} />
      {!rows ? (
        !p.problem && <Skeleton lines={6} />
      ) : rows.length === 0 ? (
        p.empty
      ) : (
        <div class="scroll">
          <table class={`list ${p.class ?? ""}`} data-testid={p.id}>
            <caption class="unseen">{p.caption}</caption>
            <thead>
              <tr>
                {p.columns.map((c) => (
                  <th
                    key={c.id}
                    scope="col"
                    class={classNames(c)}
                    aria-sort={c.id === columnId ? (isDescending ? "descending" : "ascending") : undefined}
                  >
                    {c.title ? (
                      <button type="button" class="head" title={c.hint} onClick={() => toggleSort(c)}>
                        {c.title}
                        <i aria-hidden="true">{c.id === columnId ? (isDescending ? " ↓" : " ↑") : ""}</i>
                      </button>
                    ) : (
                      <span class="unseen">Actions</span>
                    )}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {shown!.map((row) => {
                const key = p.rowKey(row);
                const isClickable = p.href || p.choose;
                return (
                  <tr
                    key={key}
                    data-row={isClickable ? (p.href?.(row) ?? "") : undefined}
                    data-incident={p.incident?.(row)}
                    data-testid={p.rowTestId}
                    tabIndex={isClickable ? -1 : undefined}
                    aria-current={(p.chosen !== undefined && p.chosen === key) || undefined}
                    onClick={
                      isClickable
                        ? (event) => {
                            if (!(event.target as Element).closest("a, button, input, select")) open(row);
                          }
                        : undefined
                    }
                    onKeyDown={
                      p.choose
                        ? (event) => {
                            if (event.key === "Enter" && event.target === event.currentTarget) open(row);
                          }
                        : undefined
                    }
                  >
                    {p.columns.map((c) => (
                      <td key={c.id} class={classNames(c)}>
                        {c.cell ? c.cell(row) : formatValue(c.value(row))}
                      </td>
                    ))}
                  </tr>
                );
              })}
            </tbody>
          </table>
          <p class="foot-line">
            {hiddenCount > 0 && (
              <button type="button" class="plain" onClick={() => setExpanded(true)}>
                Show {count(hiddenCount)} more
              </button>
            )}
            <Export id={p.id} columns={p.columns} rows={rows} />
          </p>
        </div>
      )}
    </>
  );
}

const classNames = (c: { numeric?: boolean; minor?: boolean; class?: string }) =>
  [c.numeric && "n", c.minor && "minor", c.class].filter(Boolean).join(" ") || undefined;
const formatValue = (value: Value) =>
  value == null || value === "" ? "unknown" : typeof value === "number" ? count(value) : value;
/** Compare for sorting; unknown values come last in both directions. */
function compare(a: Value, b: Value, isDescending: boolean): number {
  if (a == null || b == null) return Number(a == null) - Number(b == null);
  const order =
    typeof a === "number" && typeof b === "number"
      ? a - b
      : String(a).localeCompare(String(b), "en", { numeric: true });
  return isDescending ? -order : order;
}

/** The button that exports a table as CSV. */
export const Export = <T,>(p: { id: string; columns: Pick<Column<T>, "title" | "value">[]; rows: T[] }) => (
  <button
    type="button"
    class="plain"
    data-export
    data-testid={`${p.id}-csv`}
    title="Export this table as CSV (e)"
    onClick={() => download(`${p.id}.csv`, csv(p.columns, p.rows))}
  >
    CSV
  </button>
);
export function csv<T>(columns: Pick<Column<T>, "title" | "value">[], rows: T[]): string {
  const head = columns.map((c) => csvField(c.title));
  const lines = rows.map((row) => columns.map((c) => csvField(c.value(row))));
  return [head, ...lines].map((line) => `${line.join(",")}\r\n`).join("");
}
/** RFC 4180; a text that a spreadsheet would run as a formula gets a leading apostrophe (OWASP, CSV injection). */
function csvField(value: Value): string {
  if (value == null) return "";
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
export function download(name: string, text: string, kind = "text/csv"): void {
  const link = document.createElement("a");
  const address = URL.createObjectURL(new Blob([text], { type: `${kind};charset=utf-8` }));
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
