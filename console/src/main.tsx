// The shell: navigation, search, keys, theme, and the state of the connection around every page.

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import "./console.css";
import { Drills } from "./drills";
import { finder, FleetPage, RANGES } from "./fleet";
import { clock, many, utc, zone } from "./format";
import { GpuPage } from "./gpu";
import { acknowledge, ask, connect, get, refreshFleet, refreshStatus, set, useHub } from "./hub";
import { IncidentPage } from "./incident";
import { IncidentsPage } from "./incidents";
import { Chip, Empty, focus, Panel } from "./parts";
import { followLinks, go, put, useAddress } from "./router";
import { SloPage } from "./slo";
import type { Status } from "./types";

const KEYS = [["/", "search"], ["g f", "fleet"], ["g i", "incidents"], ["g o", "objectives"], ["j k", "next, previous incident"], ["Enter", "open it"], ["a", "acknowledge"], ["n", "note"], ["e", "export"], ["t", "dark or light"], ["?", "these keys"]];
const prefersLight = matchMedia("(prefers-color-scheme: light)");
const themeNow = () => localStorage.getItem("theme") ?? (prefersLight.matches ? "light" : "dark");

function useTheme(): [string, () => void] {
  const [theme, choose] = useState(themeNow);
  document.documentElement.dataset.theme = theme;
  useEffect(() => { const follow = () => choose(themeNow()); prefersLight.addEventListener("change", follow); return () => prefersLight.removeEventListener("change", follow); }, []);
  return [theme, () => { const next = theme === "dark" ? "light" : "dark"; localStorage.setItem("theme", next); choose(next); }];
}

function Search({ address }: { address: URL }) {
  const { fleet, open, closed } = useHub();
  const [text, type] = useState(address.searchParams.get("q") ?? "");
  const [shown, show] = useState(false);
  const found = shown && text.trim().length > 1 ? results(text.trim()) : [];
  function results(q: string): { to: string; label: string; hint: string }[] {
    const fits = finder(q, fleet?.workloads ?? {}), low = q.toLowerCase();
    const incidents = [...(open ?? []), ...(closed ?? [])].filter((c) => `${c.id} ${c.title} ${c.cause}`.toLowerCase().includes(low));
    const gpus = (fleet?.nodes ?? []).flatMap((n) => n.gpus.filter((g) => g && fits(n, g)).map((g) => ({ to: `/gpu/${g!.uuid}`, label: `${n.name} · GPU ${g!.index ?? "?"}`, hint: fleet?.workloads?.[g!.uuid] ?? g!.model ?? "" })));
    return [...incidents.slice(0, 4).map((c) => ({ to: `/incidents/${c.id}`, label: c.title, hint: c.id })), ...gpus.slice(0, 6)];
  }
  const submit = (event: Event) => {
    event.preventDefault();
    const exact = found.length === 1 || found[0]?.to.startsWith("/incidents") ? found[0].to : `/?q=${encodeURIComponent(text.trim())}`;
    show(false); (document.activeElement as HTMLElement)?.blur(); go(text.trim() ? exact : "/");
  };
  return (
    <form class="search" role="search" onSubmit={submit}>
      <input id="search" data-testid="search" value={text} autocomplete="off" placeholder="Find a node, GPU, workload or incident" aria-label="Find a node, GPU, workload or incident"
        onInput={(e) => { type(e.currentTarget.value); show(true); if (!e.currentTarget.value) put("q", null); }} onBlur={() => setTimeout(() => show(false), 150)} onKeyDown={(e) => e.key === "Escape" && e.currentTarget.blur()} />
      <kbd>/</kbd>
      {found.length > 0 && <div class="found" data-testid="found">{found.map((f) => <a key={f.to} href={f.to}>{f.label}<small>{f.hint}</small></a>)}</div>}
    </form>
  );
}

function SignIn() {
  const [problem, say] = useState("");
  const send = async (event: Event) => {
    event.preventDefault();
    try { await ask("/api/login", "POST", { token: new FormData(event.currentTarget as HTMLFormElement).get("token") }); set({ signIn: false }); location.reload(); }
    catch (error) { say((error as Error).message); }
  };
  return <main class="sign-in"><Panel><h1>Watchkeeper</h1><p class="dim">This hub asks who you are. Paste the token you were given.</p>
    <form onSubmit={send}><input type="password" name="token" required aria-label="Token" placeholder="Token" ref={focus} data-testid="token" /><button class="primary">Sign in</button></form>
    {problem && <p class="problem" role="alert">{problem}</p>}</Panel></main>;
}

function useKeys(address: URL, selected: number, select: (n: number) => void, help: (f: (shown: boolean) => boolean) => void, toggle: () => void): void {
  const leader = useRef(0), place = useRef(selected);
  place.current = selected;
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      const field = (event.target as Element).closest("input, select, textarea");
      if (event.key === "Escape") help(() => false);
      if (field || event.ctrlKey || event.metaKey || event.altKey) return;
      const list = [...document.querySelectorAll<HTMLElement>("[data-incident]")], current = list[place.current]?.dataset.incident;
      const here = /^\/incidents\/(.+)/.exec(address.pathname)?.[1], led = Date.now() - leader.current < 1200;
      leader.current = event.key === "g" ? Date.now() : 0;
      const move = (by: number) => { const to = Math.min(list.length - 1, Math.max(0, place.current + by)); select((place.current = to)); list[to]?.scrollIntoView({ block: "nearest" }); };
      const acts: Record<string, (() => void) | false | undefined> = {
        "/": () => document.getElementById("search")?.focus(),
        f: led && (() => go("/")), i: led && (() => go("/incidents")), o: led && (() => go("/slo")),
        j: () => move(1), k: () => move(-1),
        Enter: current && event.target === document.body ? () => go(`/incidents/${current}`) : undefined,
        a: () => { const id = here ?? current; if (id) acknowledge(id); },
        n: () => document.getElementById("note")?.focus(),
        e: () => document.querySelector<HTMLElement>("[data-testid=export]")?.click(),
        t: toggle, "?": () => help((shown) => !shown),
      };
      const act = acts[event.key];
      if (act) { event.preventDefault(); act(); }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });
}

function RuleTrouble({ rules }: { rules: Status["rules"] }) {
  return (
    <details class="banner" data-testid="rule-trouble">
      <summary role="status">▲ The rule files have {many(rules.problems.length, "problem")}; the {rules.rules} rules of <b title={utc(rules.in_force_since)}>{clock(rules.in_force_since)}</b> stay in force.</summary>
      <ul>{rules.problems.map((problem) => <li key={problem}><code>{problem}</code></li>)}</ul>
    </details>
  );
}

function Shell() {
  const address = useAddress(), hub = useHub();
  const [theme, toggle] = useTheme();
  const [selected, select] = useState(-1);
  const [help, showHelp] = useState(false);
  useKeys(address, selected, select, showHelp, toggle);
  useEffect(() => select(-1), [address.pathname]);
  useEffect(() => { if (!hub.notice) return; const timer = setTimeout(() => set({ notice: undefined }), 5000); return () => clearTimeout(timer); }, [hub.notice]);
  if (hub.signIn) return <SignIn />;
  const [, first, second] = address.pathname.split("/"), id = second && decodeURIComponent(second);
  const span = address.searchParams.get("range") ?? "1h";
  return (
    <>
      <nav class="rail" aria-label="pages">
        <a class="nav" href="/" aria-current={!first || first === "gpu" || undefined} data-testid="nav-fleet">Fleet</a>
        <a class="nav" href="/incidents" aria-current={first === "incidents" || undefined} data-testid="nav-incidents">Inc.{hub.open && hub.open.length > 0 && <sup>{hub.open.length}</sup>}</a>
        <a class="nav" href="/slo" aria-current={first === "slo" || undefined} data-testid="nav-slo" title="Service level objectives and their error budgets">SLO</a>
        {hub.status?.simulated && <Drills />}
        <button type="button" class="nav foot" onClick={toggle} data-testid="theme" aria-label={`Switch to the ${theme === "dark" ? "light" : "dark"} theme`}>{theme === "dark" ? "Light" : "Dark"}</button>
        <button type="button" class="nav" onClick={() => showHelp(true)} aria-label="All keys">?</button>
      </nav>
      <header class="top">
        <a class="brand" href="/">Watchkeeper</a>
        <Search address={address} />
        {hub.status && <><Chip>cluster {hub.status.cluster}</Chip>
          {first === "" && <label class="chip">last <select value={span} aria-label="time range" data-testid="range" onChange={(e) => put("range", e.currentTarget.value)}>{Object.keys(RANGES).map((r) => <option key={r}>{r}</option>)}</select></label>}
          <Chip>{zone()}</Chip><Chip title="how far Watchkeeper may go on its own">act: {hub.status.mode}</Chip></>}
        {hub.status?.simulated && <Chip tone="accent">simulated</Chip>}
        <span class={`link ${hub.link}`} data-testid="link" data-link={hub.link} title={hub.heard && utc(hub.heard)}>{hub.link === "live" ? `live · ${hub.heard ? clock(hub.heard) : ""}` : hub.link}</span>
      </header>
      {hub.link === "lost" && <p class="banner" role="status" data-testid="lost">Connection to the hub lost; {hub.heard ? <>showing what was known at <b title={utc(hub.heard)}>{clock(hub.heard)}</b>, </> : ""}retrying.</p>}
      {hub.status && !hub.status.ready && <p class="banner" role="status">The hub is not ready: {hub.status.not_ready_because}.</p>}
      {hub.status && !hub.status.rules.is_successful && <RuleTrouble rules={hub.status.rules} />}
      {!first ? <FleetPage address={address} theme={theme} selected={selected} />
        : first === "incidents" && id ? <IncidentPage id={id} theme={theme} key={id} />
        : first === "incidents" ? <IncidentsPage address={address} selected={selected} />
        : first === "slo" ? <SloPage address={address} theme={theme} />
        : first === "gpu" && id ? <GpuPage uuid={id} address={address} theme={theme} key={id} />
        : <main class="single"><Panel><Empty title="There is no such page"><a href="/">Fleet</a> · <a href="/incidents">Incidents</a> · <a href="/slo">Objectives</a></Empty></Panel></main>}
      {help && <div class="overlay" role="dialog" aria-label="Keys" data-testid="keys" onClick={() => showHelp(false)}><Panel title="Keys"><table class="facts"><tbody>{KEYS.map(([key, text]) => <tr key={key}><th>{key.split(" ").map((k) => <kbd key={k}>{k}</kbd>)}</th><td>{text}</td></tr>)}</tbody></table></Panel></div>}
      <div class="notice" role="status" aria-live="polite" data-testid="notice">{hub.notice}</div>
    </>
  );
}

set({ colour: new URL(location.href).searchParams.get("colour") ?? get().colour });
followLinks();
connect();
setInterval(refreshFleet, 60000);
setInterval(refreshStatus, 15000);
render(<Shell />, document.getElementById("app")!);
