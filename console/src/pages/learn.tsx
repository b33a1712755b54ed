// Learn: a quiz about running GPUs. The hub checks the answers; it stores nothing about the learner.

import { useState } from "preact/hooks";
import { Choice, Empty, MarkedText, Panel, Problem, RequestProblem, Skeleton } from "../components/parts";
import { request, useRequest } from "../lib/api";
import { count, humanise } from "../lib/format";
import { type PageProps, param, setParam } from "../lib/router";
import { useHub } from "../lib/store";
import "../styles/pages.css";

interface Question {
  id: string;
  topic: string;
  question: string;
  options: string[];
}
interface Checked {
  id: string;
  is_right: boolean;
  right: string;
  why: string;
  page: string;
  drill: string;
}
interface Score {
  topics: { topic: string; right: number; questions: number }[];
  answers: Checked[];
}

const FIRST_TOPIC = "metrics";

export function LearnPage({ address }: PageProps) {
  const topic = param(address, "topic", FIRST_TOPIC);
  const path = `/api/learn/quiz?${new URLSearchParams({ topic })}`;
  const [round, setRound] = useState(0);
  const { answer, problem } = useRequest<{ topics: string[]; questions: Question[] }>(path, round);
  return (
    <main class="single" data-testid="learn-page">
      <Panel title="Learn" hint="a quiz by topic; nothing is stored">
        <RequestProblem problem={problem} isStale={!!answer} />
        {answer && (
          <Choice
            label="Topic"
            id="topics"
            options={answer.topics.map((name) => [name, humanise(name)] as const)}
            value={topic}
            choose={(name) => setParam("topic", name)}
          />
        )}
        <p class="dim small">
          To save your scores before and after, use <code>watchkeeper learn quiz</code>. For eight weeks with a check on
          a simulated fleet, use <code>watchkeeper learn path</code>.
        </p>
      </Panel>
      {!answer ? (
        !problem && <Skeleton lines={8} />
      ) : answer.questions.length ? (
        <Quiz
          key={`${topic} ${answer.questions.map((q) => q.options[0]).join()}`}
          questions={answer.questions}
          again={() => setRound((n) => n + 1)}
        />
      ) : (
        <Empty title="No question" />
      )}
    </main>
  );
}

function Quiz({ questions, again }: { questions: Question[]; again: () => void }) {
  const [score, setScore] = useState<Score>();
  const [problem, setProblem] = useState("");
  const check = async (event: Event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const answers = Object.fromEntries(questions.map((q) => [q.id, String(form.get(q.id) ?? "")]));
    try {
      setScore(await request<Score>("/api/learn/quiz", "POST", { answers }));
      setProblem("");
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  const checked = new Map(score?.answers.map((a) => [a.id, a]));
  return (
    <form class="tall quiz" onSubmit={check} data-testid="quiz">
      {questions.map((q, i) => (
        <Panel key={q.id} id="question">
          <fieldset class="question" disabled={!!score}>
            <legend>
              {i + 1}. {q.question}
            </legend>
            {q.options.map((option) => (
              <label key={option}>
                <input type="radio" name={q.id} value={option} /> {option}
              </label>
            ))}
          </fieldset>
          {checked.has(q.id) && <Verdict answer={checked.get(q.id)!} />}
        </Panel>
      ))}
      {problem && <Problem>{problem}</Problem>}
      <Panel>
        {score ? (
          <p data-testid="score">
            {score.topics.map((t) => `${count(t.right)} of ${count(t.questions)} right`).join(", ")}.{" "}
            <button type="button" data-testid="again" onClick={again}>
              Answer again
            </button>
          </p>
        ) : (
          <button type="submit" data-testid="check-answers">
            Check answers
          </button>
        )}
      </Panel>
    </form>
  );
}

function Verdict({ answer }: { answer: Checked }) {
  const docs = useHub().status?.docs_url;
  return (
    <div data-testid="verdict" class="small">
      <p>
        <MarkedText tone={answer.is_right ? "ok" : "critical"}>{answer.is_right ? "Right." : "Not right."}</MarkedText>
        {!answer.is_right && <> The answer is: {answer.right}.</>} {answer.why}
      </p>
      <p>
        Read{" "}
        {docs ? (
          <a href={`${docs.replace(/\/$/, "")}/${answer.page.replace(/^docs\//, "")}`} target="_blank" rel="noreferrer">
            {answer.page}
          </a>
        ) : (
          <code>{answer.page}</code>
        )}
        {answer.drill && (
          <>
            , try <a href={`/drills?scenario=${answer.drill}`}>the drill {answer.drill}</a>
          </>
        )}
      </p>
    </div>
  );
}
