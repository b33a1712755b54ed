// A field for PromQL: completion at the cursor from the hub's own metrics and functions, and errors marked where they
// are.

import { useEffect, useRef, useState } from "preact/hooks";
import { ask } from "../lib/api";

interface Word {
  word: string;
  kind: string;
  detail: string;
}
/** `length` is that of the text it was made for: who types on is inside the word, which has grown by as much. */
interface Offer {
  begins: number;
  ends: number;
  words: Word[];
  kind: string;
  length: number;
}
const PAUSE = 120;
const GLYPHS: Record<string, string> = {
  metric: "m",
  function: "ƒ",
  aggregation: "Σ",
  label: "l",
  value: "v",
  keyword: "k",
  duration: "t",
};

export function PromqlField(p: {
  value: string;
  run: (text: string) => void;
  problem?: string;
  id: string;
  label: string;
  focused?: boolean;
}) {
  const field = useRef<HTMLTextAreaElement>(null);
  const typing = useRef(0);
  const [text, type] = useState(p.value);
  const [offer, show] = useState<Offer | null>(null);
  const [at, move] = useState(-1);
  useEffect(() => {
    type(p.value);
  }, [p.value]);
  useEffect(() => {
    if (p.focused) field.current?.focus();
    return () => clearTimeout(typing.current);
  }, []);
  const look = (content: string, forced = false) => {
    clearTimeout(typing.current);
    typing.current = window.setTimeout(
      async () => {
        const cursor = field.current?.selectionStart ?? content.length;
        try {
          const found = await ask<Offer>(
            `/api/explore/complete?${new URLSearchParams({ query: content, at: String(cursor) })}`,
          );
          if (document.activeElement !== field.current || field.current?.value !== content) return;
          show(
            found.words.length && (forced || found.ends > found.begins || found.kind !== "name")
              ? { ...found, length: content.length }
              : null,
          );
          move(-1);
        } catch {
          show(null);
        }
      },
      forced ? 0 : PAUSE,
    );
  };
  const take = (word: Word) => {
    if (!offer) return;
    const tail = word.kind === "function" || word.kind === "aggregation" ? "(" : "";
    const next =
      text.slice(0, offer.begins) +
      word.word +
      tail +
      text.slice(Math.max(offer.begins, offer.ends + text.length - offer.length));
    const cursor = offer.begins + word.word.length + tail.length;
    // At once and not with the next drawing: otherwise further typing is lost.
    field.current!.value = next;
    field.current!.focus();
    field.current!.setSelectionRange(cursor, cursor);
    type(next);
    show(null);
  };
  const keys = (event: KeyboardEvent) => {
    if (offer && ["ArrowDown", "ArrowUp"].includes(event.key)) {
      event.preventDefault();
      move(
        (Math.max(at, event.key === "ArrowDown" ? -1 : 0) + (event.key === "ArrowDown" ? 1 : -1) + offer.words.length) %
          offer.words.length,
      );
    } else if (offer && (event.key === "Tab" || (event.key === "Enter" && at >= 0 && !event.shiftKey))) {
      event.preventDefault();
      take(offer.words[Math.max(0, at)]);
    } else if (event.key === "Escape") {
      if (offer) {
        event.stopPropagation();
        show(null);
      } else field.current?.blur();
    } else if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      show(null);
      clearTimeout(typing.current);
      p.run(text.trim());
    } else if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      look(text, true);
    }
  };
  const line = offer ? text.slice(0, offer.begins).split("\n") : [""];
  const list = `${p.id}-words`;
  return (
    <div class="promql">
      <textarea
        ref={field}
        id={p.id}
        data-testid={p.id}
        rows={Math.min(12, Math.max(1, text.split("\n").length))}
        value={text}
        spellcheck={false}
        autocomplete="off"
        autocapitalize="off"
        aria-label={p.label}
        placeholder="PromQL, for example avg(DCGM_FI_PROF_SM_ACTIVE)"
        aria-controls={offer ? list : undefined}
        aria-autocomplete="list"
        aria-activedescendant={offer && at >= 0 ? `${list}-${at}` : undefined}
        aria-invalid={Boolean(p.problem)}
        onInput={(e) => {
          type(e.currentTarget.value);
          look(e.currentTarget.value);
        }}
        onKeyDown={keys}
        onBlur={() => setTimeout(() => show(null), 150)}
        onClick={() => show(null)}
      />
      {offer && (
        <ul
          class="words"
          id={list}
          role="listbox"
          data-testid={`${p.id}-words`}
          style={{
            left: `min(${Math.max(0, line.at(-1)!.length)}ch, calc(100% - 440px))`,
            top: `calc(${line.length} * 19px + 10px)`,
          }}
        >
          {offer.words.map((w, i) => (
            <li
              key={w.word + w.kind}
              id={`${list}-${i}`}
              role="option"
              aria-selected={i === at}
              onMouseDown={(e) => {
                e.preventDefault();
                take(w);
              }}
              ref={(el) => {
                if (i === at) el?.scrollIntoView({ block: "nearest" });
              }}
            >
              <i title={w.kind}>{GLYPHS[w.kind]}</i>
              <code>{w.word}</code>
              <small>{w.detail}</small>
            </li>
          ))}
        </ul>
      )}
      {p.problem && p.value === text.trim() && <Mistake text={p.value} problem={p.problem} id={p.id} />}
    </div>
  );
}

/** The line of the expression with the mistake, the place marked, and what is wrong in words. */
function Mistake({ text, problem, id }: { text: string; problem: string; id: string }) {
  const found = /(?:^|[^\d])(\d+):(\d+): ([\s\S]+)$/.exec(problem);
  if (!found)
    return (
      <p class="problem" role="alert" data-testid={`${id}-problem`}>
        {problem}
      </p>
    );
  const row = Number(found[1]);
  const column = Number(found[2]);
  const line = text.split("\n")[row - 1] ?? "";
  const here = line.slice(column - 1, column) || " ";
  return (
    <div class="mistake" role="alert" data-testid={`${id}-problem`}>
      <code>
        {line.slice(0, column - 1)}
        <mark>{here}</mark>
        {line.slice(column)}
      </code>
      <p class="problem">
        Line {row}, column {column}: {found[3]}
      </p>
    </div>
  );
}
