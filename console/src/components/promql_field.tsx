// An input for PromQL: completion of the hub's metrics and functions, and a mark at the position of an error.

import { useEffect, useRef, useState } from "preact/hooks";
import { request } from "../lib/api";

interface Completion {
  word: string;
  kind: string;
  detail: string;
}
/** `length` is the length of the text at the request; text typed since then extends the completed word. */
interface Completions {
  begins: number;
  ends: number;
  words: Completion[];
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
  const [text, setText] = useState(p.value);
  const [completions, setCompletions] = useState<Completions | null>(null);
  const [selected, setSelected] = useState(-1);
  useEffect(() => {
    setText(p.value);
  }, [p.value]);
  useEffect(() => {
    if (p.focused) field.current?.focus();
    return () => clearTimeout(typing.current);
  }, []);
  const complete = (content: string, forced = false) => {
    clearTimeout(typing.current);
    typing.current = window.setTimeout(
      async () => {
        const cursor = field.current?.selectionStart ?? content.length;
        try {
          const answer = await request<Completions>(
            `/api/explore/complete?${new URLSearchParams({ query: content, at: String(cursor) })}`,
          );
          if (document.activeElement !== field.current || field.current?.value !== content) return;
          setCompletions(
            answer.words.length && (forced || answer.ends > answer.begins || answer.kind !== "name")
              ? { ...answer, length: content.length }
              : null,
          );
          setSelected(-1);
        } catch {
          setCompletions(null);
        }
      },
      forced ? 0 : PAUSE,
    );
  };
  const insert = (completion: Completion) => {
    if (!completions) return;
    const tail = completion.kind === "function" || completion.kind === "aggregation" ? "(" : "";
    const next =
      text.slice(0, completions.begins) +
      completion.word +
      tail +
      text.slice(Math.max(completions.begins, completions.ends + text.length - completions.length));
    const cursor = completions.begins + completion.word.length + tail.length;
    // Set the value now, not at the next render: otherwise keys typed in between are lost.
    field.current!.value = next;
    field.current!.focus();
    field.current!.setSelectionRange(cursor, cursor);
    setText(next);
    setCompletions(null);
  };
  const handleKey = (event: KeyboardEvent) => {
    if (completions && ["ArrowDown", "ArrowUp"].includes(event.key)) {
      event.preventDefault();
      setSelected(
        (Math.max(selected, event.key === "ArrowDown" ? -1 : 0) +
          (event.key === "ArrowDown" ? 1 : -1) +
          completions.words.length) %
          completions.words.length,
      );
    } else if (completions && (event.key === "Tab" || (event.key === "Enter" && selected >= 0 && !event.shiftKey))) {
      event.preventDefault();
      insert(completions.words[Math.max(0, selected)]);
    } else if (event.key === "Escape") {
      if (completions) {
        event.stopPropagation();
        setCompletions(null);
      } else field.current?.blur();
    } else if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      setCompletions(null);
      clearTimeout(typing.current);
      p.run(text.trim());
    } else if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      complete(text, true);
    }
  };
  const line = completions ? text.slice(0, completions.begins).split("\n") : [""];
  const listId = `${p.id}-words`;
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
        aria-controls={completions ? listId : undefined}
        aria-autocomplete="list"
        aria-activedescendant={completions && selected >= 0 ? `${listId}-${selected}` : undefined}
        aria-invalid={Boolean(p.problem)}
        onInput={(e) => {
          setText(e.currentTarget.value);
          complete(e.currentTarget.value);
        }}
        onKeyDown={handleKey}
        onBlur={() => setTimeout(() => setCompletions(null), 150)}
        onClick={() => setCompletions(null)}
      />
      {completions && (
        <ul
          class="words"
          id={listId}
          role="listbox"
          data-testid={`${p.id}-words`}
          style={{
            left: `min(${Math.max(0, line.at(-1)!.length)}ch, calc(100% - 440px))`,
            top: `calc(${line.length} * 19px + 10px)`,
          }}
        >
          {completions.words.map((w, i) => (
            <li
              key={w.word + w.kind}
              id={`${listId}-${i}`}
              role="option"
              aria-selected={i === selected}
              onMouseDown={(e) => {
                e.preventDefault();
                insert(w);
              }}
              ref={(el) => {
                if (i === selected) el?.scrollIntoView({ block: "nearest" });
              }}
            >
              <i title={w.kind}>{GLYPHS[w.kind]}</i>
              <code>{w.word}</code>
              <small>{w.detail}</small>
            </li>
          ))}
        </ul>
      )}
      {p.problem && p.value === text.trim() && <QueryProblem text={p.value} problem={p.problem} id={p.id} />}
    </div>
  );
}

/** The line of the expression with the error marked, and the error message. */
function QueryProblem({ text, problem, id }: { text: string; problem: string; id: string }) {
  const match = /(?:^|[^\d])(\d+):(\d+): ([\s\S]+)$/.exec(problem);
  if (!match)
    return (
      <p class="problem" role="alert" data-testid={`${id}-problem`}>
        {problem}
      </p>
    );
  const row = Number(match[1]);
  const column = Number(match[2]);
  const line = text.split("\n")[row - 1] ?? "";
  const badCharacter = line.slice(column - 1, column) || " ";
  return (
    <div class="mistake" role="alert" data-testid={`${id}-problem`}>
      <code>
        {line.slice(0, column - 1)}
        <mark>{badCharacter}</mark>
        {line.slice(column)}
      </code>
      <p class="problem">
        Line {row}, column {column}: {match[3]}
      </p>
    </div>
  );
}
