// Jobs side by side: best values for the same money and in the same time, and what their files differ in.
import { useState } from "preact/hooks";
import uPlot from "uplot";
import { Comparison, Refused, get } from "./api";
import { Figure, Plot, Table, look } from "./charts";
import { duration, money, none, number } from "./format";
import { useLive } from "./live";
import { usePaced } from "./paced";

const COLOURS = ["blue", "orange", "green", "red", "grey"] as const;
const DASHES = [[], [8, 4], [3, 3]];

export function ComparePage({ names }: { names: string[] }) {
  const { jobs } = useLive();
  const [found, setFound] = useState<Comparison | null>(null);
  const [error, setError] = useState("");
  const query = names.map((name) => `job=${encodeURIComponent(name)}`).join("&");
  const ask = async () => {
    try {
      setFound(await get<Comparison>(`/comparison?${query}`));
      setError("");
    } catch (failure) {
      if (failure instanceof Refused) setError(failure.message);
    }
  };
  usePaced(ask, [query, ...names.map((name) => jobs.get(name)?.epoch)]);
  return (
    <section class="compare">
      <h1>Compare {names.length} jobs</h1>
      {error ? (
        <p class="error" role="alert">
          {error}
        </p>
      ) : found ? (
        <Compared found={found} />
      ) : (
        <p>Loading…</p>
      )}
    </section>
  );
}

function Compared({ found }: { found: Comparison }) {
  const { jobs, metric, currency, differences, levels } = found;
  const names = jobs.map((job) => job.name);
  const cash = (value: number | null) => money(value, currency);
  const worth = (value: number | null) => number(value, 4);
  const best = (values: (number | null)[], low: boolean, words: (value: number | null) => string) => {
    const known = values.filter((value): value is number => value !== null);
    const first = low ? Math.min(...known) : Math.max(...known);
    return values.map((value) => (value !== null && value === first ? <strong>{words(value)}</strong> : words(value)));
  };
  return (
    <>
      <h2>What differs</h2>
      {differences.length ? (
        <Table
          name="What differs"
          head={["Field", ...names]}
          rows={differences.map((row) => [row.field, ...row.values.map((value) => value ?? none)])}
        />
      ) : (
        <p>The job files have the same fields.</p>
      )}
      <div class="figures">
        <Curves found={found} by="money" title={`${metric} for the same money`} axis={currency} words={cash} />
        <Curves found={found} by="seconds" title={`${metric} in the same time`} axis="seconds" words={duration} />
        <Figure
          title={`Best ${metric} with this money`}
          head={["Money", ...names]}
          rows={found.by_money.map(([limit, values]) => [cash(limit), ...best(values, found.lower, worth)])}
        />
        <Figure
          title={`Best ${metric} after this time`}
          head={["Time", ...names]}
          rows={found.by_time.map(([limit, values]) => [duration(limit), ...best(values, found.lower, worth)])}
        />
        <Figure
          title={`Money to this ${metric}`}
          head={[metric, ...names]}
          rows={levels.map((level) => [worth(level.value), ...best(level.money, true, cash)])}
        />
        <Figure
          title={`Time to this ${metric}`}
          head={[metric, ...names]}
          rows={levels.map((level) => [worth(level.value), ...best(level.seconds, true, duration)])}
        />
      </div>
      <p>
        Bold: the best of its row. The best whole epoch so far counts; time without the job's suspensions.
      </p>
    </>
  );
}

type Curve = { found: Comparison; by: "money" | "seconds"; title: string; axis: string; words: (value: number | null) => string };

function Curves({ found, by, title, axis, words }: Curve) {
  const { jobs, metric } = found;
  const xs = [...new Set(jobs.flatMap((job) => job[by]))].sort((a, b) => a - b);
  const lines = jobs.map((job) => {
    const at = new Map(job[by].map((x, index) => [x, job.best[index]!]));
    return xs.map((x) => at.get(x)) as (number | null)[];
  });
  const ends = jobs.map((job) => `${job.name} ${number(job.best.at(-1), 4)} after ${words(job[by].at(-1)!)}`);
  return (
    <Figure
      title={title}
      head={["Job", "Epoch", axis, `Best ${metric}`]}
      rows={jobs.flatMap((job) => job.best.map((value, index) => [job.name, index + 1, words(job[by][index]!), number(value, 4)]))}
    >
      <Plot
        label={`best ${metric} by ${axis}: ${ends.join(", ")}`}
        data={[xs, ...lines]}
        make={(c) => ({
          scales: { x: { time: false } },
          axes: [{ label: axis, values: (_, ticks) => ticks.map((tick) => number(tick)) }, { label: `best ${metric}` }],
          series: [
            { label: axis, value: (_, x) => words(x) },
            ...jobs.map((job, index) => ({
              label: job.name,
              stroke: (c as ReturnType<typeof look>)[COLOURS[index % COLOURS.length]!],
              dash: DASHES[Math.floor(index / COLOURS.length) % DASHES.length]!,
              width: 2,
              spanGaps: true,
              paths: uPlot.paths.stepped!({ align: 1 }),
              points: { show: true, size: 5 },
              value: (_: unknown, value: number | null) => number(value, 4),
            })),
          ],
        })}
      />
    </Figure>
  );
}
