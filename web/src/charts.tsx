// Figures: a canvas with a name, its data as a table, and files from the server.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { API, Detail, Figures, jobPath } from "./api";
import { money, none, number } from "./format";

type Look = Record<"text" | "grid" | "blue" | "orange" | "red" | "green" | "grey" | "band", string>;

export function look(): Look {
  const style = getComputedStyle(document.documentElement);
  const read = (name: string) => style.getPropertyValue(`--${name}`).trim();
  const names = ["text", "grid", "blue", "orange", "red", "green", "grey", "band"] as const;
  return Object.fromEntries(names.map((name) => [name, read(name)])) as Look;
}

interface PlotGiven {
  kind?: string;
  label: string;
  make: (look: Look) => Partial<uPlot.Options>;
  data: uPlot.AlignedData;
}

export function Plot({ kind = "", label, make, data }: PlotGiven) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const made = useRef(make);
  made.current = make;
  const [theme, setTheme] = useState(0);
  const shape = data.length;
  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const change = () => setTheme((count) => count + 1);
    dark.addEventListener("change", change);
    return () => dark.removeEventListener("change", change);
  }, []);
  useEffect(() => {
    const holder = box.current!;
    const colours = look();
    const axis = { stroke: colours.text, grid: { stroke: colours.grid, width: 1 }, ticks: { stroke: colours.grid } };
    const own = made.current(colours);
    const options: uPlot.Options = {
      width: Math.max(200, holder.clientWidth),
      height: 220,
      series: [],
      cursor: { drag: { x: true, y: false } },
      ...own,
      axes: (own.axes ?? [{}, {}]).map((one) => ({ ...axis, ...one })),
    };
    plot.current = new uPlot(options, data, holder);
    const canvas = holder.querySelector("canvas");
    canvas?.setAttribute("role", "img");
    canvas?.setAttribute("aria-label", label);
    const watch = new ResizeObserver(() => plot.current?.setSize({ width: Math.max(200, holder.clientWidth), height: 220 }));
    watch.observe(holder);
    return () => {
      watch.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [theme, shape, label]);
  useEffect(() => plot.current?.setData(data), [data]);
  return <div class={`plot ${kind}`} ref={box} />;
}

interface Shown {
  title: string;
  empty?: string;
  job?: string;
  picture?: string;
  csv?: string;
  head: string[];
  rows: ComponentChildren[][];
  children?: ComponentChildren;
}

export function Figure({ title, empty, job, picture, csv, head, rows, children }: Shown) {
  const [table, setTable] = useState(false);
  const files = job === undefined ? "" : `${API}${jobPath(job)}`;
  return (
    <figure>
      <figcaption>
        <h3>{title}</h3>
        {!empty && (
          <span class="files">
            {children && (
              <button type="button" aria-pressed={table} onClick={() => setTable(!table)}>
                Table<span class="unseen"> of {title}</span>
              </button>
            )}
            {picture && (
              <>
                <a href={`${files}/figures/${picture}.png`} target="_blank" rel="noreferrer">
                  PNG<span class="unseen"> of {title}</span>
                </a>
                <a href={`${files}/figures/${picture}.svg`} target="_blank" rel="noreferrer">
                  SVG<span class="unseen"> of {title}</span>
                </a>
              </>
            )}
            {csv && (
              <a href={`${files}/${csv}.csv`} download={`${job}-${csv}.csv`}>
                CSV<span class="unseen"> of {title}</span>
              </a>
            )}
          </span>
        )}
      </figcaption>
      {empty ? <p class="empty">{empty}</p> : table || !children ? <Table head={head} rows={rows} name={title} /> : children}
    </figure>
  );
}

export function Table({ head, rows, name }: { head: string[]; rows: ComponentChildren[][]; name: string }) {
  return (
    <div class="wide tall" tabIndex={0} role="region" aria-label={`Table: ${name}`}>
      <table>
        <thead>
          <tr>
            {head.map((one) => (
              <th key={one}>{one}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={index}>
              {row.map((cell, column) => (
                <td key={column}>{cell}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface Drawn {
  detail: Detail;
  figures: Figures;
}

export function CurveFigure({ detail, figures }: Drawn) {
  const { metric, target, name: job } = detail.job;
  const { fitted, end } = figures;
  const points = detail.epochs.filter((one) => one.loss !== null || one.value !== null).map((one) => ({ ...one, x: one.epochs_trained }));
  const title = "Learning curve";
  const other = metric !== "loss" && metric !== "accuracy";
  const values = points.map((point) => point.value);
  const shown = [...values, target].filter((value): value is number => value !== null);
  const [lowest, highest] = [Math.min(...shown), Math.max(...shown)];
  const far = metric === "loss" && lowest > 0 && lowest < 0.2 * highest;
  const xs = [...new Set([...points.map((point) => point.x), ...fitted.map((point) => point.x)])].sort((a, b) => a - b);
  const at = new Map(points.map((point, index) => [point.x, values[index] ?? null]));
  const fit = new Map(fitted.map((point) => [point.x, point]));
  const pick = (key: "value" | "low" | "high") => interpolated(xs, xs.map((x) => fit.get(x)?.[key] ?? null));
  const data: uPlot.AlignedData = [
    xs,
    pick("high"),
    // A logarithm has no zero.
    pick("low").map((low) => (far && low !== null ? Math.max(low, lowest / 2) : low)),
    pick("value"),
    xs.map((x) => at.get(x) ?? undefined) as (number | null)[],
    xs.map(() => target),
  ];
  const last = values.at(-1);
  const label =
    `${metric} by passes over the data: ${points.length} epochs, the last at ${number(last)}` +
    (target === null ? "" : `, target ${number(target)}`) +
    (end ? `, expected to hold after ${number(end.expected)} passes (${number(end.low)} to ${number(end.high)})` : "");
  return (
    <Figure
      title={title}
      job={job}
      picture="curve"
      csv="epochs"
      empty={points.length ? "" : "No epoch has been evaluated yet."}
      head={["Epoch", "Passes over the data", "Loss", "Accuracy", ...(other ? [metric] : [])]}
      rows={points.map((p) => [`${p.epoch}${p.kind === "probe" ? " (probe)" : ""}`, number(p.x), number(p.loss, 4), number(p.accuracy, 4), ...(other ? [number(p.value, 4)] : [])])}
    >
      <Plot
        key={String(far)}
        kind="curve"
        label={label}
        data={data}
        make={(c) => ({
          scales: {
            x: { time: false },
            y: far ? { distr: 3, range: [lowest / 1.5, highest * 1.3] } : { range: (_, low, high) => around(low, high) },
          },
          axes: [
            { label: "passes over the data" },
            {
              label: metric,
              ...(far && {
                splits: (_: uPlot, __: number, low: number, high: number) => decades(low, high),
                values: (_: uPlot, ticks: number[]) => ticks.map((tick) => number(tick)),
                filter: (_: uPlot, ticks: number[]) => ticks,
              }),
            },
          ],
          bands: [{ series: [1, 2], fill: c.band }],
          series: [
            { label: "passes", value: (_, v) => number(v) },
            { label: "80 % high", stroke: "transparent", value: (_, v) => number(v), points: { show: false } },
            { label: "80 % low", stroke: "transparent", value: (_, v) => number(v), points: { show: false } },
            { label: "fitted", stroke: c.grey, dash: [3, 3], points: { show: false }, value: (_, v) => number(v) },
            { label: metric, stroke: c.blue, width: 2, spanGaps: true, points: { show: true, size: 6 }, value: (_, v) => number(v, 4) },
            { label: "target", stroke: c.red, dash: [8, 4], points: { show: false }, value: (_, v) => number(v) },
          ],
        })}
      />
    </Figure>
  );
}

// Bands need a value at each point: those between two fitted ones are on the line between them.
function interpolated(xs: number[], ys: (number | null)[]): (number | null)[] {
  const known = ys.flatMap((y, index) => (y === null ? [] : [index]));
  return ys.map((y, index) => {
    if (y !== null) return y;
    const after = known.find((one) => one > index);
    const before = known.findLast((one) => one < index);
    if (after === undefined || before === undefined) return null;
    const share = (xs[index]! - xs[before]!) / (xs[after]! - xs[before]! || 1);
    return ys[before]! + share * (ys[after]! - ys[before]!);
  });
}

function decades(low: number, high: number): number[] {
  const found = [];
  for (let ten = 10 ** Math.floor(Math.log10(low)); ten <= high; ten *= 10)
    found.push(...[1, 2, 5].map((one) => one * ten).filter((tick) => tick >= low && tick <= high));
  return found;
}

function around(low: number | null, high: number | null): [number, number] {
  if (low === null || high === null || !Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  const space = (high - low || Math.abs(high) || 1) * 0.08;
  return [low >= 0 ? Math.max(0, low - space) : low - space, high + space];
}

export function AllocationFigure({ detail, figures }: Drawn) {
  const { job, ledger } = detail;
  const servers = ledger.some((one) => one.servers > 0);
  const until = job.ended_at ? Date.parse(job.ended_at) : figures.now * 1000;
  const spans = ledger.map((one) => {
    const begin = one.started_at ? Date.parse(one.started_at) : until;
    return { begin: begin / 1000, end: Math.max(begin, one.ended_at ? Date.parse(one.ended_at) : until) / 1000 };
  });
  const xs = spans.flatMap(({ begin, end }) => [begin, Math.max(end, begin + 1e-3)]);
  const workers = ledger.flatMap((one) => [one.workers, one.workers]);
  const counts = ledger.flatMap((one) => [one.servers, one.servers]);
  const last = ledger.at(-1);
  const label = `Workers and servers over time: ${ledger.length} attempts of epochs, the last with ${last?.workers ?? 0} workers and ${last?.servers ?? 0} servers`;
  const most = Math.max(1, ...workers, ...counts);
  return (
    <Figure
      title="Allocation over time"
      job={job.name}
      picture="allocation"
      csv="ledger"
      empty={ledger.length ? "" : "No epoch has started yet."}
      head={["Epoch", "Workers", "Servers", "From", "To", "Result"]}
      rows={ledger.map((one, index) => [
        `${one.epoch}${one.kind === "probe" ? " (probe)" : ""}`,
        one.workers,
        one.servers,
        clock(spans[index]!.begin),
        one.ended_at || job.ended_at ? clock(spans[index]!.end) : "runs",
        one.outcome,
      ])}
    >
      <Plot
        label={label}
        data={servers ? [xs, workers, counts] : [xs, workers]}
        make={(c) => ({
          scales: { y: { range: [0, most * 1.15] } },
          axes: [{ values: times, space: 100 }, { label: "functions", incrs: [1, 2, 5, 10, 20, 50, 100] }],
          series: [
            { label: "at", value: at },
            { label: "workers", stroke: c.blue, width: 3, paths, points: { show: false }, value },
            ...(servers ? [{ label: "servers", stroke: c.orange, width: 2, dash: [6, 3], paths, points: { show: false }, value }] : []),
          ],
        })}
      />
    </Figure>
  );
}

export function MoneyFigure({ detail, figures }: Drawn) {
  const { budget, currency, name: job } = detail.job;
  const purse = figures.money;
  const xs = purse.map((one) => one.at);
  const top = Math.max(...purse.map((one) => one.spent + one.reserved), 0);
  const near = budget !== null && budget <= 3 * top;
  const data: uPlot.AlignedData = [xs, purse.map((one) => one.spent + one.reserved), purse.map((one) => one.spent)];
  if (near) data.push(xs.map(() => budget));
  const last = purse.at(-1);
  const label =
    `Money over time: ${money(last?.spent ?? 0, currency)} spent, ${money(last?.reserved ?? 0, currency)} reserved` +
    (budget === null ? ", no budget" : ` of ${money(budget, currency)}`);
  return (
    <Figure
      title={budget !== null && !near ? `Money (budget ${money(budget, currency)}, far above)` : "Money"}
      job={job}
      picture="money"
      csv="ledger"
      empty={top > 0 ? "" : "No money was reserved or spent yet."}
      head={["Time", "Spent", "Reserved (at most)"]}
      rows={purse.map((one) => [clock(one.at), money(one.spent, currency), money(one.reserved, currency)])}
    >
      <Plot
        label={label}
        data={data}
        make={(c) => {
          const paths = uPlot.paths.stepped!({ align: 1 });
const value = (_: uPlot, v: number | null) => money(v, currency);
          return {
            scales: { y: { range: (_, __, high) => [0, (high || 1) * 1.1] } },
            axes: [{ values: times, space: 100 }, { size: 70, values: (_, ticks) => ticks.map((tick) => number(tick)), label: currency }],
            series: [
              { label: "at", value: at },
              { label: "spent + reserved", stroke: c.orange, fill: c.band, paths, points: { show: false }, value },
              { label: "spent", stroke: c.blue, width: 2, paths, points: { show: false }, value },
              ...(near ? [{ label: "budget", stroke: c.red, dash: [8, 4], points: { show: false }, value }] : []),
            ],
          };
        }}
      />
    </Figure>
  );
}

// The fitted speed as a grid of workers and servers: darker is faster.
export function SpeedFigure({ detail, chosen }: { detail: Detail; chosen: string }) {
  const rows = detail.speed;
  const most = Math.max(...rows.map((row) => row.epochs_per_second), 1e-12);
  const sorted = [...rows].sort((a, b) => a.servers - b.servers || a.workers - b.workers);
  const workers = [...new Set(sorted.map((row) => row.workers))].sort((a, b) => a - b);
  const servers = [...new Set(sorted.map((row) => row.servers))].sort((a, b) => a - b);
  return (
    <Figure
      title="Speed: fitted and measured"
      job={detail.job.name}
      picture="speed"
      empty={rows.length ? "" : "No speed is known yet: the first probe measures it."}
      head={["Workers", "Servers", "Epochs/s fitted (80 %)", "Measured", "Epoch takes", "Epoch costs"]}
      rows={sorted.map((row) => [
        row.workers,
        row.servers,
        `${number(row.epochs_per_second)} (${number(row.epochs_per_second_low)} to ${number(row.epochs_per_second_high)})`,
        row.measured === null ? "not yet" : number(row.measured),
        `${number(row.seconds)} s`,
        money(row.cost, detail.job.currency),
      ])}
    >
      <table class="surface">
        <caption class="unseen">Fitted speed in epochs a second by workers and servers</caption>
        <thead>
          <tr>
            <td />
            {workers.map((one) => (
              <th key={one} scope="col">
                {one} {one === 1 ? "worker" : "workers"}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {servers.map((server) => (
            <tr key={server}>
              <th scope="row">{server ? `${server} ${server === 1 ? "server" : "servers"}` : "epochs/s"}</th>
              {workers.map((worker) => {
                const row = rows.find((one) => one.workers === worker && one.servers === server);
                if (!row) return <td key={worker}>–</td>;
                const level = Math.max(1, Math.round((row.epochs_per_second / most) * 5));
                const here = chosen === (server ? `${worker}x${server}` : String(worker));
                return (
                  <td key={worker} class={`level-${level}${here ? " chosen" : ""}`}>
                    {number(row.epochs_per_second)}
                    <small>
                      {here && "chosen, "}
                      {row.measured === null ? "predicted" : "measured"}
                    </small>
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </Figure>
  );
}

const paths = uPlot.paths.stepped!({ align: 1 });
const at = (_: uPlot, time: number | null) => (time === null ? none : clock(time));
const value = (_: uPlot, count: number | null) => number(count);
const times = (_: uPlot, ticks: number[]) => ticks.map(clock);

function clock(seconds: number): string {
  return new Intl.DateTimeFormat(undefined, { timeStyle: "medium" }).format(new Date(seconds * 1000));
}
