import { beforeEach, expect, test, vi } from "vitest";
import { findPage, navigate, param, RANGES, rangeMs, setParam, setParams, to, withParams } from "./router";

const PAGES = [{ path: "/" }, { path: "/gpu/" }, { path: "/jobs" }, { path: "/incidents" }, { path: "/incidents/" }];
const pathOf = (path: string) => findPage(PAGES, path).row?.path;
const at = (address: string) => new URL(address, "http://hub");

/** The part of a browser that the router needs: the address, and how many events were sent. */
const browser = { href: "", entries: 0, events: 0 };
beforeEach(() => {
  Object.assign(browser, { href: "http://hub/", entries: 1, events: 0 });
  const move = (entries: number) => (_state: unknown, _title: string, path: string) => {
    browser.href = new URL(path, browser.href).href;
    browser.entries += entries;
  };
  vi.stubGlobal("location", browser);
  vi.stubGlobal("history", { pushState: move(1), replaceState: move(0) });
  vi.stubGlobal("dispatchEvent", () => browser.events++);
});

test("a path leads to its page and a path with a thing to the page of one thing", () => {
  expect(["/", "/jobs", "/gpu/GPU-1", "/incidents", "/incidents/INC-7"].map(pathOf)).toEqual([
    "/",
    "/jobs",
    "/gpu/",
    "/incidents",
    "/incidents/",
  ]);
});

test("a page without a page for one thing shows the thing itself", () => {
  expect(findPage(PAGES, "/jobs/research/llm-70b")).toEqual({
    row: { path: "/jobs" },
    first: "jobs",
    id: "research/llm-70b",
  });
});

test("an unknown path has no page", () => {
  expect([pathOf("/nothing"), pathOf("/nothing/7"), pathOf("/gpu")]).toEqual([undefined, undefined, undefined]);
});

test("the name of a thing is decoded and a wrong escape stays as it was typed", () => {
  expect(findPage(PAGES, to.job("team/a b")).id).toBe("team/a b");
  expect(findPage(PAGES, "/gpu/%zz").id).toBe("%zz");
});

test("every address of a thing carries its name whole", () => {
  expect(to.gpu("GPU 1/2")).toBe("/gpu/GPU%201%2F2");
  expect(to.explore('up{job="a&b"}')).toBe("/explore?expr=up%7Bjob%3D%22a%26b%22%7D");
  expect(at(to.fleet("rack:r07 -state:ok")).searchParams.get("q")).toBe("rack:r07 -state:ok");
});

test("a link with parameters keeps the others and an empty one goes", () => {
  expect(withParams(at("/jobs?q=a&state=all"), { q: "b", state: null })).toBe("/jobs?q=b");
  expect(withParams(at("/jobs?q=a"), { q: "" })).toBe("/jobs");
});

test("a filter stays on the page and makes no entry in the history", () => {
  browser.href = "http://hub/jobs?q=a";
  setParam("state", "running");
  expect(browser).toMatchObject({ href: "http://hub/jobs?q=a&state=running", entries: 1, events: 1 });
  setParams({ q: null, state: null });
  expect(browser).toMatchObject({ href: "http://hub/jobs", entries: 1, events: 2 });
});

test("another page is another entry of the history", () => {
  navigate("/fabric");
  expect(browser).toMatchObject({ href: "http://hub/fabric", entries: 2, events: 1 });
});

test("a parameter that is missing has its usual value and an unknown range is an hour", () => {
  expect(param(at("/?view=list"), "view")).toBe("list");
  expect(param(at("/"), "view", "map")).toBe("map");
  expect([rangeMs(at("/?range=7d")), rangeMs(at("/?range=9y")), rangeMs(at("/"))]).toEqual([
    RANGES["7d"],
    RANGES["1h"],
    RANGES["1h"],
  ]);
});
