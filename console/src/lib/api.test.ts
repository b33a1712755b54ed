import { beforeEach, describe, expect, test, vi } from "vitest";
import { queryRange, queryRanges, RequestError, request } from "./api";
import { getState, setState } from "./store";

/** What went to the hub, and what it answers next. */
const sent: { path: string; options: RequestInit }[] = [];
let answer: () => Promise<Response>;
beforeEach(() => {
  sent.length = 0;
  setState({ signIn: false, status: undefined, frame: undefined, updatedAt: undefined });
  vi.stubGlobal("fetch", (path: string, options: RequestInit) => {
    sent.push({ path, options });
    return answer();
  });
});
const answers = (content: unknown, status = 200) => {
  answer = async () => new Response(typeof content === "string" ? content : JSON.stringify(content), { status });
};
const refusal = () => request("/api/x").catch((problem: unknown) => problem as RequestError);

describe("a request", () => {
  test("it carries a body as JSON, and without one nothing", async () => {
    answers({ ok: true });
    await request("/api/incidents/INC-1/note", "POST", { text: "seen" });
    await request("/api/status");
    expect(sent[0]).toEqual({
      path: "/api/incidents/INC-1/note",
      options: { method: "POST", headers: { "Content-Type": "application/json" }, body: '{"text":"seen"}' },
    });
    expect(sent[1]).toEqual({ path: "/api/status", options: { method: "GET" } });
  });

  test("its answer is what the hub wrote", async () => {
    answers({ incidents: [] });
    expect(await request("/api/incidents")).toEqual({ incidents: [] });
  });
});

describe("a refusal", () => {
  test("it says what the hub says, with its status", async () => {
    answers({ ok: false, error: "incident INC-9 not found" }, 404);
    const problem = await refusal();
    expect(problem).toBeInstanceOf(RequestError);
    expect(problem).toMatchObject({ status: 404, message: "incident INC-9 not found" });
  });

  test("without words of the hub the status has to do", async () => {
    answers("<html>Bad gateway</html>", 502);
    expect(await refusal()).toMatchObject({ status: 502, message: "The hub returned HTTP 502" });
    answers({ ok: false }, 500);
    expect(await refusal()).toMatchObject({ status: 500, message: "The hub returned HTTP 500" });
  });

  test.each([new TypeError("Failed to fetch"), new DOMException("took too long", "TimeoutError")])(
    "a hub that is gone or too slow does not answer: %s",
    async (why) => {
      answer = () => Promise.reject(why);
      expect(await refusal()).toMatchObject({ status: 0, message: "The hub does not answer" });
    },
  );

  test("one who is not signed in is asked to, and any other refusal asks for nothing", async () => {
    answers({ error: "not yours" }, 403);
    await refusal();
    expect(getState().signIn).toBe(false);
    answers({ error: "login required" }, 401);
    expect(await refusal()).toMatchObject({ status: 401 });
    expect(getState().signIn).toBe(true);
  });
});

describe("samples over a time", () => {
  const matrix = (...result: object[]) => answers({ status: "success", data: { resultType: "matrix", result } });

  test("what is not a number is no sample", async () => {
    matrix({
      metric: { UUID: "a" },
      values: [
        [10, "1.5"],
        [20, "NaN"],
        [30, "0"],
      ],
    });
    const [series] = await queryRange("up", 10, 30, 10);
    expect(series.labels).toEqual({ UUID: "a" });
    expect([...series.points]).toEqual([
      [10, 1.5],
      [30, 0],
    ]);
    expect(sent[0].path).toBe("/api/v1/query_range?query=up&start=10&end=30&step=10");
  });

  test("after now there is none, however often an engine repeats the last one", async () => {
    const soon = Math.floor(Date.now() / 1000) + 3600;
    matrix({
      metric: {},
      values: [
        [10, "1"],
        [soon, "1"],
      ],
    });
    expect([...(await queryRange("up", 10, soon, 10))[0].points.keys()]).toEqual([10]);
    setState({ updatedAt: new Date((soon + 1) * 1000).toISOString() });
    expect([...(await queryRange("up", 10, soon, 10))[0].points.keys()]).toEqual([10, soon]);
  });

  test("several expressions are one question, and each gets its own samples", async () => {
    matrix({ metric: { strip: "2" }, values: [[10, "3"]] }, { metric: { strip: "0" }, values: [[10, "1"]] });
    const found = await queryRanges(["a", "b", "c"], 10, 20, 10);
    expect(found.map((points) => [...points.values()])).toEqual([[1], [], [3]]);
    expect(new URL(sent[0].path, "http://hub").searchParams.get("query")).toBe(
      ["a", "b", "c"].map((expr, i) => `label_replace(${expr}, "strip", "${i}", "", "")`).join(" or "),
    );
    expect(sent.length).toBe(1);
  });

  test("no expression asks nothing", async () => {
    expect(await queryRanges([], 10, 20, 10)).toEqual([]);
    expect(sent).toEqual([]);
  });
});
