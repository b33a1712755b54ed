// The frame of every page: the table of pages, navigation, keyboard shortcuts, theme and connection state.

import { type ComponentType, render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import "./styles/console.css";
import { DegradedBanner, RuleReloadBanner } from "./components/banners";
import { KeysDialog, useKeys } from "./components/keys";
import { Chip, Empty, Panel, Skeleton } from "./components/parts";
import { Search } from "./components/search";
import { SignIn } from "./components/sign_in";
import { autoRepair, countAtLeast, timeOfDay, timeZone, utcTime } from "./lib/format";
import { connect, refreshStatus } from "./lib/live";
import { findPage, handleLinks, type PageProps, type PageRow, RANGES, setParam, useAddress } from "./lib/router";
import { getState, setState, useHub, useReconnects } from "./lib/store";
import { useTheme } from "./lib/theme";
import { FleetPage } from "./pages/fleet/fleet";

// The fleet page is part of the main bundle: on a busy hub each request takes long, whatever its size.
const FLEET: PageRow = { path: "/", name: "Fleet", key: "f", group: "monitor", load: async () => FleetPage };

// A page is one row. A path that ends with a slash shows one object; the rest of the path is its `id`.
const PAGES: PageRow[] = [
  FLEET,
  {
    path: "/gpu/",
    name: "GPU",
    key: "",
    group: "monitor",
    hidden: true,
    load: () => import("./pages/node/gpu").then((m) => m.GpuPage),
  },
  {
    path: "/node/",
    name: "Node",
    key: "",
    group: "monitor",
    hidden: true,
    load: () => import("./pages/node/node").then((m) => m.NodePage),
  },
  {
    path: "/incidents",
    name: "Incidents",
    short: "Inc.",
    key: "i",
    group: "monitor",
    load: () => import("./pages/incident/incidents").then((m) => m.IncidentsPage),
  },
  {
    path: "/incidents/",
    name: "Incident",
    key: "",
    group: "monitor",
    hidden: true,
    load: () => import("./pages/incident/incident").then((m) => m.IncidentPage),
  },
  {
    path: "/fabric",
    name: "Fabric",
    key: "b",
    group: "monitor",
    load: () => import("./pages/fabric/fabric").then((m) => m.FabricPage),
  },
  {
    path: "/jobs",
    name: "Jobs",
    key: "j",
    group: "monitor",
    load: () => import("./pages/jobs/jobs").then((m) => m.JobsPage),
  },
  {
    path: "/explore",
    name: "Explore",
    key: "e",
    group: "analyse",
    load: () => import("./pages/explore/explore").then((m) => m.ExplorePage),
  },
  {
    path: "/cost",
    name: "Cost and capacity",
    short: "Cost",
    key: "c",
    group: "analyse",
    load: () => import("./pages/cost/cost").then((m) => m.CostPage),
  },
  {
    path: "/slo",
    name: "Objectives and rules",
    short: "SLO",
    key: "o",
    group: "analyse",
    load: () => import("./pages/slo/slo").then((m) => m.SloPage),
  },
  {
    path: "/journal",
    name: "Journal",
    key: "l",
    group: "analyse",
    load: () => import("./pages/journal").then((m) => m.JournalPage),
  },
  {
    path: "/drills",
    name: "Drills",
    key: "d",
    group: "practise",
    load: () => import("./pages/drills/drills").then((m) => m.DrillsPage),
  },
  {
    path: "/learn",
    name: "Learn",
    key: "q",
    group: "practise",
    load: () => import("./pages/learn").then((m) => m.LearnPage),
  },
];

const GROUPS = ["monitor", "analyse", "practise"] as const;

const SECTIONS_WITH_RANGE = ["", "gpu", "node"];

const FLEET_SECTIONS = ["", "gpu", "node"];

const loaded = new Map<PageRow, ComponentType<PageProps>>([[FLEET, FleetPage]]);

/** A page; its code is loaded once, and a skeleton is shown until then. */
function Page({ row, ...props }: PageProps & { row: PageRow }) {
  const [problem, setProblem] = useState("");
  const [, redraw] = useState(0);
  const returns = useReconnects();
  useEffect(() => {
    const failed = () =>
      setProblem(
        getState().link === "lost"
          ? "The hub does not answer. This page loads when the hub is back."
          : "Loading this page failed. The hub may have been upgraded.",
      );
    if (!loaded.has(row))
      row.load().then((page) => {
        loaded.set(row, page);
        setProblem("");
        redraw((n) => n + 1);
      }, failed);
  }, [row, returns]);
  const LoadedPage = loaded.get(row);
  if (LoadedPage) return <LoadedPage {...props} key={`${row.path}${props.id}`} />;
  return (
    <main class="single">
      <Panel>
        {problem ? (
          <Empty title={problem}>
            <a href={props.address.href} target="_self">
              Reload
            </a>
          </Empty>
        ) : (
          <Skeleton lines={8} />
        )}
      </Panel>
    </main>
  );
}

function Rail({
  pages,
  first,
  theme,
  toggle,
  help,
}: {
  pages: PageRow[];
  first: string;
  theme: string;
  toggle: () => void;
  help: () => void;
}) {
  const { openTotal } = useHub();
  const currentPath = FLEET_SECTIONS.includes(first) ? "/" : `/${first}`;
  return (
    <nav class="rail" aria-label="Pages">
      {GROUPS.map((group) => {
        const groupPages = pages.filter((p) => p.group === group);
        return (
          groupPages.length > 0 && (
            <div key={group} class="group" role="group" aria-label={group}>
              {groupPages.map((p) => (
                <a
                  class="nav"
                  key={p.path}
                  href={p.path}
                  aria-current={p.path === currentPath ? "page" : undefined}
                  data-testid={`nav-${p.path.slice(1) || "fleet"}`}
                  title={`${p.name} (g ${p.key})`}
                  onPointerEnter={() => p.load().catch(() => undefined)}
                >
                  {p.short ?? p.name}
                  {p.path === "/incidents" && openTotal && openTotal.incidents > 0 && (
                    <sup aria-label={`${countAtLeast(openTotal.incidents, openTotal.hasMore)} open`}>
                      {openTotal.incidents}
                      {openTotal.hasMore && "+"}
                    </sup>
                  )}
                </a>
              ))}
            </div>
          )
        );
      })}
      <div class="group foot">
        <button
          type="button"
          class="nav"
          onClick={toggle}
          data-testid="theme"
          title="Switch between dark and light theme (t)"
          aria-label={`Switch to the ${theme === "dark" ? "light" : "dark"} theme`}
        >
          {theme === "dark" ? "Light" : "Dark"}
        </button>
        <button type="button" class="nav" onClick={help} title="Keyboard shortcuts (?)" aria-label="Keyboard shortcuts">
          ?
        </button>
      </div>
    </nav>
  );
}

function Shell() {
  const address = useAddress();
  const hub = useHub();
  const [theme, toggle] = useTheme();
  const [help, showHelp] = useState(false);
  const pages = PAGES.filter((p) => !p.hidden && (!p.simulated || hub.status?.simulated));
  useKeys(address, pages, showHelp, toggle);
  useEffect(() => {
    if (!hub.notice) return;
    const timer = setTimeout(() => setState({ notice: undefined }), 5000);
    return () => clearTimeout(timer);
  }, [hub.notice]);
  const { row, first, id } = findPage(PAGES, address.pathname);
  useEffect(() => {
    document.title = row?.path === "/" || !row ? "Watchkeeper" : `${id || row.name} · Watchkeeper`;
  }, [row, id]);
  // The focused link disappeared with its page: focus the new page, so that a screen reader announces it.
  const previousPath = useRef(address.pathname);
  useEffect(() => {
    if (previousPath.current !== address.pathname && document.activeElement === document.body)
      document.getElementById("page")?.focus({ preventScroll: true });
    previousPath.current = address.pathname;
  }, [address.pathname]);
  if (hub.signIn) return <SignIn />;
  const span = address.searchParams.get("range") ?? "1h";
  return (
    <>
      <a class="skip" href="#page" target="_self">
        Skip to content
      </a>
      <Rail pages={pages} first={first} theme={theme} toggle={toggle} help={() => showHelp(true)} />
      <header class="top">
        <a class="brand" href="/">
          Watchkeeper
        </a>
        <Search address={address} />
        <div class="chips state-line">
          {hub.status && (
            <>
              <Chip>cluster {hub.status.cluster}</Chip>
              {SECTIONS_WITH_RANGE.includes(first) && (
                <label class="chip">
                  last{" "}
                  <select
                    value={span}
                    aria-label="time range"
                    data-testid="range"
                    onChange={(e) => setParam("range", e.currentTarget.value)}
                  >
                    {Object.keys(RANGES).map((r) => (
                      <option key={r}>{r}</option>
                    ))}
                  </select>
                </label>
              )}
              <Chip title="Times are in this time zone. Hover over a time for UTC.">{timeZone()}</Chip>
              <Chip title="Repair mode: which repairs may run, and which need approval">
                {autoRepair(hub.status.mode)}
              </Chip>
            </>
          )}
          {hub.status?.simulated && <Chip tone="accent">simulated fleet</Chip>}
        </div>
        <span
          class={`link ${hub.link}`}
          data-testid="link"
          data-link={hub.link}
          title={hub.updatedAt && utcTime(hub.updatedAt)}
        >
          {hub.link === "live"
            ? `live · ${hub.updatedAt ? timeOfDay(hub.updatedAt) : ""}`
            : hub.link === "lost"
              ? "disconnected"
              : hub.link}
        </span>
      </header>
      {hub.link === "lost" && (
        <p class="banner" role="status" data-testid="lost">
          Disconnected from the hub.{" "}
          {hub.updatedAt && (
            <>
              Showing the state of <b title={utcTime(hub.updatedAt)}>{timeOfDay(hub.updatedAt)}</b>.{" "}
            </>
          )}
          Retrying.
        </p>
      )}
      {hub.status && !hub.status.ready && (
        <p class="banner" role="status">
          The hub is not ready: {hub.status.not_ready_because}.
        </p>
      )}
      {hub.status && !hub.status.rules.is_successful && <RuleReloadBanner rules={hub.status.rules} />}
      {hub.status && hub.status.degraded.length > 0 && hub.link !== "lost" && (
        <DegradedBanner problems={hub.status.degraded} />
      )}
      <div id="page" tabIndex={-1}>
        {row && !id && <h1 class="unseen">{row.name}</h1>}
        {row ? (
          <Page row={row} address={address} theme={theme} id={id} />
        ) : (
          <main class="single">
            <Panel>
              <Empty title="Page not found">
                {pages.map((p, i) => (
                  <span key={p.path}>
                    {i > 0 && " · "}
                    <a href={p.path}>{p.name}</a>
                  </span>
                ))}
              </Empty>
            </Panel>
          </main>
        )}
      </div>
      {help && <KeysDialog pages={pages} close={() => showHelp(false)} />}
      <div class="notice" role="status" aria-live="polite" data-testid="notice">
        {hub.notice}
      </div>
    </>
  );
}

// Load the code of the page and its first answers at the same time.
findPage(PAGES, location.pathname)
  .row?.load()
  .catch(() => undefined);
setState({ colour: new URL(location.href).searchParams.get("colour") ?? getState().colour });
handleLinks((path) => Boolean(findPage(PAGES, path).row));
connect();
setInterval(refreshStatus, 15000);
render(<Shell />, document.getElementById("app")!);
