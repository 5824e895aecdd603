// All jobs as rows of one height; only those in sight are in the document.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Job } from "./api";
import { labels, money, none, number, percent, rounded, size, when } from "./format";
import { useLive } from "./live";
import { MoneyBar, Spark, State } from "./parts";

// Of a row in pixels, as style.css has it: on a phone a row has two lines.
const height = () => (matchMedia("(max-width: 560px)").matches ? 66 : 38);
const SPARE = 8;
const FILTERS: Record<string, (job: Job) => boolean> = {
  All: () => true,
  Running: (job) => !job.ended_at && (job.state === "Training" || job.state === "Probing"),
  Waiting: (job) => !job.ended_at && job.state !== "Training" && job.state !== "Probing",
  Ended: (job) => job.ended_at !== null,
};

// What a column sorts by; the newest job first without one.
const SORTS: Record<string, (job: Job) => string | number> = {
  Name: (job) => job.name,
  State: (job) => job.state,
  Epoch: (job) => job.epoch,
  Value: (job) => job.value ?? Infinity,
  Spent: (job) => job.spent,
  "Done at": (job) => Date.parse(job.ended_at ?? job.done_at ?? "") || Infinity,
};

// Whether a job's name or one of its labels, as key=value, has this in it.
const matches = (job: Job, text: string) =>
  job.name.includes(text) || Object.entries(job.labels).some(([key, value]) => `${key}=${value}`.toLowerCase().includes(text));

export function JobsPage() {
  const { jobs, progress, version, cluster } = useLive();
  const [filter, setFilter] = useState("All");
  const [text, setText] = useState("");
  const [sort, setSort] = useState({ by: "", down: false });
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const choose = (name: string, on: boolean) => {
    const next = new Set(chosen);
    if (on) next.add(name);
    else next.delete(name);
    setChosen(next);
  };
  const picked = [...chosen].map(encodeURIComponent).join(",");
  const shown = useMemo(() => {
    const all = [...jobs.values()].reverse().filter((job) => matches(job, text.trim().toLowerCase()));
    const key = SORTS[sort.by];
    if (key) {
      const sign = sort.down ? -1 : 1;
      all.sort((one, other) => (key(one) < key(other) ? -sign : key(one) > key(other) ? sign : 0));
    }
    const counts = Object.fromEntries(
      Object.entries(FILTERS).map(([name, keep]) => [name, all.filter(keep).length] as const),
    );
    return { rows: all.filter(FILTERS[filter]!), counts };
  }, [version, filter, text, sort]);
  const heading = (name: string, of: string, words = name) => (
    <th class={of} aria-sort={sort.by !== name ? undefined : sort.down ? "descending" : "ascending"}>
      <button type="button" class="sort" onClick={() => setSort({ by: name, down: sort.by === name && !sort.down })}>
        {words}
        {sort.by === name && <span aria-hidden="true">{sort.down ? " ▾" : " ▴"}</span>}
      </button>
    </th>
  );
  const [first, setFirst] = useState(0);
  const [room, setRoom] = useState(30);
  const scroller = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const box = scroller.current;
    if (!box) return;
    const measure = () => setRoom(Math.ceil(box.clientHeight / height()));
    const watch = new ResizeObserver(measure);
    watch.observe(box);
    return () => watch.disconnect();
  }, []);
  useEffect(() => scroller.current?.scrollTo(0, 0), [filter, text, sort]);
  const begin = Math.max(0, Math.min(first, shown.rows.length - room) - SPARE);
  const end = Math.min(shown.rows.length, first + room + SPARE);
  return (
    <section class="jobs">
      <h1>Jobs</h1>
      <div class="tools">
        <input
          type="search"
          placeholder="Name or key=value"
          aria-label="Search names and labels of jobs"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        <span role="group" aria-label="Show">
          {Object.keys(FILTERS).map((name) => (
            <button key={name} type="button" aria-pressed={filter === name} onClick={() => setFilter(name)}>
              {name} {shown.counts[name]}
            </button>
          ))}
        </span>
        {chosen.size > 0 && (
          <span role="group" aria-label="Chosen jobs">
            {chosen.size > 1 && <a href={`#/compare/${picked}`}>Compare {chosen.size} jobs</a>}{" "}
            <a href={`#/what-if/${picked}`}>What if</a>{" "}
            <button type="button" onClick={() => setChosen(new Set())}>
              Choose none
            </button>
          </span>
        )}
      </div>
      {jobs.size === 0 ? (
        <p class="notice">
          No jobs yet. {cluster?.read_only ? "" : <a href="#/submit">Submit one</a>} In a terminal:{" "}
          <code>coach submit FILE</code>
        </p>
      ) : (
        <div
          class="scroller"
          ref={scroller}
          tabIndex={0}
          role="region"
          aria-label="Table of jobs"
          onScroll={(event) => setFirst(Math.floor(event.currentTarget.scrollTop / height()))}
        >
          <table aria-rowcount={shown.rows.length + 1}>
            <thead>
              <tr aria-rowindex={1}>
                {heading("Name", "name")}
                {heading("State", "state")}
                {heading("Epoch", "epoch")}
                {heading("Value", "curve", "Value → target")}
                <th class="size">W×S</th>
                {heading("Spent", "money", "Spent / budget")}
                {heading("Done at", "done")}
                <th class="reason">Reason</th>
              </tr>
            </thead>
            <tbody>
              {begin > 0 && <tr class="space" style={{ height: `${begin * height()}px` }} aria-hidden="true" />}
              {shown.rows.slice(begin, end).map((job, index) => (
                <Row
                  key={job.name}
                  job={job}
                  index={begin + index + 2}
                  share={progress[job.name] ?? job.progress}
                  chosen={chosen.has(job.name)}
                  choose={choose}
                />
              ))}
              {end < shown.rows.length && (
                <tr class="space" style={{ height: `${(shown.rows.length - end) * height()}px` }} aria-hidden="true" />
              )}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

interface Shown {
  job: Job;
  index: number;
  share: number | null;
  chosen: boolean;
  choose: (name: string, on: boolean) => void;
}

function Row({ job, index, share, chosen, choose }: Shown) {
  const value = job.value;
  const running = share !== null && !job.ended_at;
  return (
    <tr aria-rowindex={index}>
      <th scope="row" class="name">
        <input
          type="checkbox"
          aria-label={`Choose ${job.name}`}
          checked={chosen}
          onChange={(event) => choose(job.name, event.currentTarget.checked)}
        />
        <a href={`#/jobs/${encodeURIComponent(job.name)}`} title={[job.name, ...labels(job)].join(", ")}>
          {job.name}
        </a>
      </th>
      <td class="state">
        <State job={job} />
      </td>
      <td class="epoch">
        {job.epoch}
        {running && <small> {percent(share)}</small>}
      </td>
      <td class="curve">
        <Spark values={job.history} label={`${job.metric} of the last ${job.history.length} epochs`} />
        <span>
          {number(value)} → {job.target === null ? "best" : number(job.target)}
        </span>
      </td>
      <td class="size">{size(job.workers, job.servers)}</td>
      <td class="money">
        <MoneyBar job={job} />
        <span>
          {number(job.spent, 2)} / {job.budget === null ? `${job.account ?? "no limit"}, ${job.currency}` : money(job.budget, job.currency)}
        </span>
      </td>
      <td class="done">{job.ended_at ? `ended ${when(job.ended_at)}` : job.done_at ? when(job.done_at) : none}</td>
      <td class="reason" title={job.message || job.reason_text}>
        {job.ended_at ? rounded(job.message || job.reason_text) : job.reason_text}
      </td>
    </tr>
  );
}
