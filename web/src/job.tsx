// One job: facts and money first, then why, then tabs that are always the same.
import { useEffect, useRef, useState } from "preact/hooks";
import { Actions } from "./actions";
import { Detail, Events, Figures, Refused, Schema, Why, API, get, jobPath, put } from "./api";
import { AllocationFigure, CurveFigure, Figure, MoneyFigure, SpeedFigure, Table } from "./charts";
import { duration, labels, money, none, number, percent, rounded, size, step, when, words } from "./format";
import { live, useLive } from "./live";
import { draft } from "./submit";
import { usePaced } from "./paced";
import { MoneyBar, State, purse } from "./parts";

// The end of a log that is shown: bytes, and characters.
const LOG_SHOWN = 200_000;
const TABS = ["overview", "epochs", "money", "speed", "events", "logs", "spec"];

export function JobPage({ name, tab }: { name: string; tab: string }) {
  const { jobs, progress, cluster, connection } = useLive();
  const row = jobs.get(name);
  const [detail, setDetail] = useState<Detail | null>(null);
  const [why, setWhy] = useState<Why | null>(null);
  const [figures, setFigures] = useState<Figures | null>(null);
  const [error, setError] = useState("");
  const [again, setAgain] = useState(0);
  const path = jobPath(name);
  const marks = [row?.seq, again, connection === "live"];
  // Each is asked, and shown, by itself: figures take longest.
  const found = async () => {
    try {
      setDetail(await get<Detail>(path));
      setError("");
    } catch (failure) {
      if (failure instanceof Refused && failure.status === 404) setError(failure.message);
    }
  };
  usePaced(found, marks);
  usePaced(() => get<Why>(`${path}/why`).then(setWhy), marks);
  usePaced(() => get<Figures>(`${path}/figures`).then(setFigures), marks);
  const job = row ?? detail?.job;
  if (error)
    return (
      <section class="notice" role="alert">
        <h1>{name}</h1>
        <p>{error}</p>
        <a href="#/">All jobs</a>
      </section>
    );
  if (!job) return <p>Loading…</p>;
  const share = progress[name] ?? job.progress;
  const value = job.value;
  const total = detail?.remaining;
  const running = !job.ended_at && share !== null && share !== undefined;
  return (
    <section class="job">
      <div class="head">
        <h1>{name}</h1>
        <State job={job} />
        <span>
          epoch {job.epoch}
          {total && ` of about ${Math.round(job.epoch + total.expected)} (${Math.round(job.epoch + total.low)}–${Math.round(job.epoch + total.high)})`}
          {running && `, ${percent(share!)} of the running one`}
        </span>
        {cluster && !cluster.read_only && why && (
          <Actions job={job} actions={why.actions} done={() => setAgain((count) => count + 1)} />
        )}
      </div>
      <dl class="facts">
        <div>
          <dt>{words(job.metric)} {job.target === null ? "" : "→ target"}</dt>
          <dd>
            {number(value, 4)} {job.target === null ? "(the best that the budget buys)" : `→ ${number(job.target, 4)}`}
            {job.target !== null && job.epochs_in_a_row > 1 && (
              <small>
                {" "}
                held {job.consecutive_hits} of {job.epochs_in_a_row} epochs in a row
              </small>
            )}
          </dd>
        </div>
        <div>
          <dt>{job.ended_at ? "Ended" : "Done at"}</dt>
          <dd>
            {job.ended_at
              ? `${when(job.ended_at)}, after ${duration(job.seconds)}`
              : job.done_at
                ? `${when(job.done_at)} (${when(job.done_at_low)}–${when(job.done_at_high)}, 80 %)`
                : none}
          </dd>
        </div>
        <div>
          <dt>Workers{job.servers !== 0 && " × servers"}</dt>
          <dd>{size(job.workers, job.servers)}</dd>
        </div>
        {detail !== null && detail.devices.length > 0 && (
          <div>
            <dt>GPUs</dt>
            <dd>
              {detail.devices.map((one) => (
                <div key={one}>{one}</div>
              ))}
              {detail.device_use && <small>{detail.device_use}</small>}
            </dd>
          </div>
        )}
        {labels(job).length > 0 && (
          <div>
            <dt>Labels</dt>
            <dd>{labels(job).join(", ")}</dd>
          </div>
        )}
        <div class="purse">
          <dt>Money</dt>
          <dd>
            <MoneyBar job={job} />
            {purse(job)}
            {job.rate !== null && `; ${money(job.rate, job.currency)} an hour now`}
            {job.reserved > 0 && <small> Reserved is the most that the running epoch may cost; what it does not use comes back.</small>}
          </dd>
        </div>
      </dl>
      <section class="why" aria-labelledby="why">
        <h2 id="why">Why</h2>
        <p>
          {rounded(why ? why.summary : job.reason_text)}
          {why?.queue && ` (place ${why.queue} in the queue${why.before.length ? `, after ${why.before.slice(0, 5).join(", ")}` : ""})`}
          {why?.starts_in &&
            `; expected to start in ${duration(why.starts_in.expected)} (${duration(why.starts_in.low)}–${duration(why.starts_in.high)}, 80 %)`}
        </p>
        {why && (why.alternatives.length > 1 || why.steps.length > 0 || why.blockers.length > 0) && (
          <details>
            <summary>The decision and what else was considered</summary>
            {why.blockers.length > 0 && (
              <ul>
                {why.blockers.map((line) => (
                  <li key={line}>{line}</li>
                ))}
              </ul>
            )}
            {why.steps.length > 0 && (
              <ol>
                {why.steps.map((one, index) => (
                  <li key={index}>{step(one.text, name, job.currency)}</li>
                ))}
              </ol>
            )}
            {why.alternatives.length > 0 && (
              <Table
                name="Alternatives"
                head={["W×S", "An epoch takes (80 %)", "It costs", "Compared", "Result"]}
                rows={why.alternatives.map((one) => [
                  size(one.workers, one.servers),
                  `${duration(one.seconds)} (${duration(one.seconds_low)}–${duration(one.seconds_high)})`,
                  money(one.cost, job.currency),
                  one.verdict === "chosen" ? "" : `${percent(Math.abs(one.pace))} ${one.pace >= 0 ? "faster" : "slower"}`,
                  one.reason ? `${one.verdict}: ${one.reason}` : one.verdict,
                ])}
              />
            )}
          </details>
        )}
      </section>
      <nav class="tabs" aria-label="Parts of the job">
        {TABS.map((one) => (
          <a key={one} href={`#/jobs/${encodeURIComponent(name)}/${one}`} aria-current={one === tab ? "page" : undefined}>
            {words(one)}
          </a>
        ))}
      </nav>
      {detail && <Note key={name} name={name} text={detail.note} fixed={!cluster || cluster.read_only} />}
      <Tab name={name} tab={tab} detail={detail} figures={figures} why={why} />
    </section>
  );
}

// What the user writes about the job; it is kept when the field is left.
function Note({ name, text, fixed }: { name: string; text: string; fixed: boolean }) {
  const [error, setError] = useState("");
  if (fixed && !text) return null;
  const keep = async (written: string) => {
    try {
      await put(`${jobPath(name)}/note`, { text: written });
      setError("");
    } catch (failure) {
      setError(String(failure));
    }
  };
  return (
    <details open={text !== ""}>
      <summary>Note</summary>
      <textarea
        aria-label="Note"
        rows={3}
        readOnly={fixed}
        defaultValue={text}
        onChange={(event) => void keep(event.currentTarget.value)}
      />
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
    </details>
  );
}

interface Given {
  name: string;
  tab: string;
  detail: Detail | null;
  figures: Figures | null;
  why: Why | null;
}

function Tab({ name, tab, detail, figures, why }: Given) {
  if (tab === "events") return <EventsTab name={name} seq={detail?.seq ?? 0} />;
  if (tab === "logs") return <LogsTab name={name} seq={detail?.seq ?? 0} />;
  if (!detail || (!figures && ["overview", "money", "speed"].includes(tab))) return <p>Loading…</p>;
  const currency = detail.job.currency;
  const other = detail.job.metric !== "loss" && detail.job.metric !== "accuracy";
  const held = why?.alternatives.find((one) => one.verdict === "chosen") ?? detail.job;
  const chosen = size(held.workers, held.servers);
  switch (tab) {
    case "overview":
      return (
        <div class="figures">
          <CurveFigure detail={detail} figures={figures!} />
          <AllocationFigure detail={detail} figures={figures!} />
          <MoneyFigure detail={detail} figures={figures!} />
          <SpeedFigure detail={detail} chosen={chosen} />
          {detail.forecasts.length > 0 && <Forecasts detail={detail} />}
          {detail.job.framework !== "any" && detail.job.epoch > 0 && (
            <p>
              <a href={`${API}${jobPath(name)}/model`} download>
                Model of the best epoch
              </a>
            </p>
          )}
        </div>
      );
    case "epochs":
      return (
        <Figure
          title="Epochs"
          job={name}
          csv="epochs"
          empty={detail.epochs.length ? "" : "No epoch has ended yet."}
          head={["Epoch", "W×S", "Loss", "Accuracy", ...(other ? [detail.job.metric] : []), "Took", "Predicted (80 %)", "Cost", "Ended"]}
          rows={[...detail.epochs].reverse().map((one) => [
            `${one.epoch}${one.kind === "probe" ? " (probe)" : ""}`,
            size(one.workers, one.servers),
            number(one.loss, 4),
            number(one.accuracy, 4),
            ...(other ? [number(one.value, 4)] : []),
            duration(one.seconds),
            one.predicted_seconds === null
              ? none
              : `${duration(one.predicted_seconds)} (${duration(one.predicted_seconds_low)}–${duration(one.predicted_seconds_high)})`,
            money(one.cost, currency),
            when(one.ended_at, true),
          ])}
        />
      );
    case "money":
      return (
        <div class="figures">
          <MoneyFigure detail={detail} figures={figures!} />
          <Figure
            title="Ledger"
            job={name}
            csv="ledger"
            empty={detail.ledger.length ? "" : "Nothing was paid yet."}
            head={["Epoch", "Attempt", "W×S", "Result", "Reserved", "Cost", "Held after it", "Spent in all"]}
            rows={[...detail.ledger].reverse().map((one) => [
              one.epoch,
              one.attempt,
              size(one.workers, one.servers),
              one.outcome,
              money(one.reserved, currency),
              money(one.cost, currency),
              money(one.held, currency),
              money(one.spent, currency),
            ])}
          />
        </div>
      );
    case "speed":
      return (
        <div class="figures">
          <SpeedFigure detail={detail} chosen={chosen} />
          <AllocationFigure detail={detail} figures={figures!} />
        </div>
      );
    case "spec":
      return (
        <>
          <p>
            <button
              type="button"
              onClick={() => {
                draft(detail.text);
                location.hash = "#/submit";
              }}
            >
              Clone and edit
            </button>
          </p>
          <pre class="spec" tabIndex={0}>{detail.text}</pre>
        </>
      );
    default:
      return <p>There is no such part.</p>;
  }
}

// What was predicted of the whole job on its way, above what it took.
function Forecasts({ detail }: { detail: Detail }) {
  const { job, forecasts } = detail;
  const last = forecasts.at(-1)!;
  const cost = (value: number | null) => money(value, job.currency);
  return (
    <Figure
      title="Predicted and real"
      job={job.name}
      csv="forecasts"
      head={["At", "Time (80 %)", "Cost (80 %)"]}
      rows={[
        ...forecasts.map((one) => [
          percent(one.share),
          one.seconds === null ? none : `${duration(one.seconds)} (${duration(one.seconds_low)}–${duration(one.seconds_high)})`,
          one.cost === null ? none : `${cost(one.cost)} (${cost(one.cost_low)}–${cost(one.cost_high)})`,
        ]),
        ["Real", duration(last.actual_seconds), cost(last.actual_cost)],
      ]}
    />
  );
}

function EventsTab({ name, seq }: { name: string; seq: number }) {
  const [lines, setLines] = useState<Events["events"]>([]);
  const after = useRef(0);
  const ask = async () => {
    for (let full = true; full; ) {
      const found = await get<Events>(`${jobPath(name)}/events?after=${after.current}`);
      if (found.seq <= after.current) return;
      after.current = found.seq;
      setLines((before) => [...before, ...found.events]);
      full = found.events.length === 1000;
    }
  };
  usePaced(ask, [seq]);
  return (
    <Table
      name="Events"
      head={["Time", "What happened"]}
      rows={[...lines].reverse().map((line) => [when(line.at, true), line.important ? line.text : <small>{line.text}</small>])}
    />
  );
}

function LogsTab({ name, seq }: { name: string; seq: number }) {
  const [files, setFiles] = useState<Schema["LogFile"][] | null>(null);
  const [chosen, setChosen] = useState("");
  const [text, setText] = useState("");
  const ask = async () => {
    const found = await get<Schema["LogFiles"]>(`${jobPath(name)}/logs`);
    setFiles(found.functions);
    setChosen((before) => before || (found.functions.at(-1)?.function ?? ""));
  };
  usePaced(ask, [seq]);
  useEffect(() => {
    if (!chosen) return;
    setText("");
    const bytes = files?.find((file) => file.function === chosen)?.bytes ?? 0;
    return live.follow(`${name}/${chosen}`, Math.max(0, bytes - LOG_SHOWN), (lines, begin) =>
      setText((before) => (begin ? "" : before + readable(lines)).slice(-LOG_SHOWN)),
    );
  }, [name, chosen]);
  if (files === null) return <p>Loading…</p>;
  if (files.length === 0) return <p>No function has written a log here yet.</p>;
  return (
    <>
      <p>
        <label>
          Log of{" "}
          <select value={chosen} onChange={(event) => setChosen(event.currentTarget.value)}>
            {files.map((file) => (
              <option key={file.function} value={file.function}>
                {file.function}
              </option>
            ))}
          </select>
        </label>
      </p>
      <pre class="log" tabIndex={0} role="log" aria-label={`Log of ${chosen}`}>
        {text || "nothing yet"}
      </pre>
    </>
  );
}

// A line is JSON; what it says is text, whatever is in it.
function readable(lines: string): string {
  return lines
    .split("\n")
    .map((line) => {
      try {
        const one = JSON.parse(line);
        return `${when(one.time, true)} ${one.level ?? ""} ${one.message ?? line}`;
      } catch {
        return line;
      }
    })
    .join("\n");
}
