// Formats numbers and times for people; unknown is never shown as 0.

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const count = (n: number | null | undefined) => (n == null ? "unknown" : grouped.format(n));
export const percent = (n: number | null | undefined) =>
  n == null ? "unknown" : `${n.toFixed(n < 9.95 && Math.abs(n - Math.round(n)) >= 0.05 ? 1 : 0)} %`;

/** 0.25 → `25 %`. */
export const percentOf = (share: number | null | undefined) => percent(share == null ? null : 100 * share);

/** 0.99987 → `99.987 %`: keeps the digits after the nines. */
export const sharePercent = (n: number | null) =>
  n == null ? "unknown" : `${Number((100 * n).toFixed(n < 0.9 ? 1 : 3))} %`;

export function watts(w: number | null | undefined): string {
  if (w == null) return "unknown";
  if (w >= 1e6) return `${(w / 1e6).toFixed(2)} MW`;
  return w >= 1e3 ? `${(w / 1e3).toFixed(1)} kW` : `${w.toFixed(0)} W`;
}

const PREFIXES = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
] as const;
export function quantity(n: number | null | undefined, unit: string): string {
  if (n == null || Number.isNaN(n)) return "no reading";
  if (unit === "B/s") {
    const [step, sign] = PREFIXES.slice(1).find(([from]) => n >= from) ?? [1e3, "k"];
    return `${(n / step).toFixed(1)} ${sign}B/s`;
  }
  return `${Math.abs(n) >= 100 || Number.isInteger(n) ? grouped.format(n) : n.toFixed(1)} ${unit}`.trim();
}

/** The label of a value on an axis, short enough for 50 px. */
export function axisLabel(n: number, unit: string): string {
  const size = Math.abs(n);
  const [step, sign] = PREFIXES.find(([from]) => size >= (from === 1e3 ? 1e4 : from) && unit !== "×") ?? [1, ""];
  return `${Number((n / step).toPrecision(3))}${sign}${unit === "%" ? " %" : ""}`;
}
const wholeDollars = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const cents = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
export const dollars = (n: number | null | undefined) =>
  n == null ? "unknown" : `$ ${Math.abs(n) < 10 && n !== 0 ? cents.format(n) : wholeDollars.format(n)}`;
/** Dollars get the sign $; other currencies get their code. */
export function money(amount: number | null | undefined, currency?: string, fallback = "unknown"): string {
  if (amount == null) return fallback;
  return currency === "USD" || currency === "$" ? dollars(amount) : `${currency} ${count(amount)}`;
}

const pad = (n: number) => String(n).padStart(2, "0");
/** Local time with seconds; callers put UTC into the tooltip. */
export function timeOfDay(iso: string | number, millis = false): string {
  const d = new Date(iso);
  const text = `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
  return millis ? `${text}.${String(d.getMilliseconds()).padStart(3, "0")}` : text;
}
export function dateTime(iso: string): string {
  const d = new Date(iso);
  return `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())} ${timeOfDay(iso)}`;
}
export const utcTime = (iso: string | number) => `${new Date(iso).toISOString().replace("T", " ").slice(0, 19)} UTC`;

export function shortDuration(ms: number): string {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 90) return `${s} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  return s < 129600 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`;
}
export const timeZone = () => {
  const m = -new Date().getTimezoneOffset();
  return m === 0
    ? "UTC"
    : `UTC${m > 0 ? "+" : "−"}${Math.floor(Math.abs(m) / 60)}${m % 60 ? `:${pad(Math.abs(m) % 60)}` : ""}`;
};
/** The name of a workload; a Slurm job has only a number. */
export const workloadName = (workload: string) => (/^\d[\d_.+]*$/.test(workload) ? `job ${workload}` : workload);
/** `gpu_fell_off_bus` → `gpu fell off bus`. */
export const humanise = (id: string) => id.replace(/^incident\./, "").replace(/[_.]/g, " ");

const ENTRY_NAMES: Record<string, string> = { joined: "signal added", ended: "signal resolved" };

/** The kind of a journal entry, for people: `incident.joined` → `signal added`. */
export const entryName = (kind: string) => ENTRY_NAMES[humanise(kind)] ?? humanise(kind);
export const plural = (n: number, noun: string) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

/** `5`, or `at least 1,000` where the true number is not known. */
export const countAtLeast = (n: number, hasMore: boolean) => (hasMore ? `at least ${count(n)}` : count(n));

/** `5`, or `3 of 5` if not all are shown. */
export const countOfTotal = (shown: number, all: number) =>
  shown < all ? `${count(shown)} of ${count(all)}` : count(shown);

const AUTO_REPAIR: Record<string, string> = { observe: "off", suggest: "recommend", ask: "with approval", act: "on" };

/** The repair mode as people read it: `Auto-repair: off`. */
export const autoRepair = (mode: string) => `Auto-repair: ${AUTO_REPAIR[mode] ?? mode}`;
