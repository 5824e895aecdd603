// Numbers, money and times as the reader's locale writes them.
export const none = "–";

export function number(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return none;
  return new Intl.NumberFormat(undefined, { maximumSignificantDigits: digits }).format(value);
}

export function money(value: number | null | undefined, currency: string): string {
  if (value === null || value === undefined) return none;
  const size = Math.abs(value);
  const digits = size < 0.1 ? { maximumSignificantDigits: 2 } : { maximumFractionDigits: size < 10 ? 4 : 2 };
  return `${new Intl.NumberFormat(undefined, digits).format(value)}\u00a0${currency}`;
}

export function percent(share: number, digits = 0): string {
  return new Intl.NumberFormat(undefined, { style: "percent", maximumFractionDigits: digits }).format(share);
}

export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return none;
  if (seconds < 10) return `${number(seconds, 2)}\u00a0s`;
  if (seconds < 60) return `${Math.round(seconds)}\u00a0s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}\u00a0min\u00a0${Math.round(seconds % 60)}\u00a0s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}\u00a0h\u00a0${Math.round((seconds % 3600) / 60)}\u00a0min`;
  return `${number(seconds / 86400, 2)}\u00a0d`;
}

const day = new Intl.DateTimeFormat(undefined, { dateStyle: "short" });
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const short = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });

export function when(iso: string | null | undefined, seconds = false): string {
  if (!iso) return none;
  const at = new Date(iso);
  const time = (seconds ? clock : short).format(at);
  return day.format(at) === day.format(new Date()) ? time : `${day.format(at)} ${time}`;
}

// BudgetExhausted -> Budget exhausted
export function words(name: string): string {
  const spaced = name.replace(/([a-z])([A-Z])/g, "$1 $2");
  return spaced.charAt(0).toUpperCase() + spaced.slice(1).toLowerCase();
}

export const count = (many: number, one: string) => `${number(many, 6)} ${one}${many === 1 ? "" : "s"}`;

// Sentences of the scheduler have exact numbers: 0.09765625 GiB, 8.637e-05.
export const rounded = (text: string) => text.replace(/\d+\.\d{5,}|\d+(\.\d+)?e-\d+/g, (found) => number(Number(found)));

// A step of a decision, without the name of the job that the page is about, its cost as money.
export const step = (text: string, job: string, currency: string) =>
  rounded(
    text
      .replace(`job ${job} `, "")
      .replace(" -> ", " → ")
      .replace(/an epoch costs ([\d.e+-]+)$/, (_, cost) => `an epoch costs ${money(Number(cost), currency)}`),
  );

export const size = (workers: number | null, servers: number | null) =>
  workers === null ? none : servers ? `${workers}x${servers}` : String(workers);

export const labels = (job: { labels: Record<string, string> }) =>
  Object.entries(job.labels).map(([key, value]) => `${key}=${value}`);
