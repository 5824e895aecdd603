// Submit: mistakes at their lines while typing, and a plan with time and cost before the button.
import { useEffect, useRef, useState } from "preact/hooks";
import { Plan, Problem, Refused, Schema, post } from "./api";
import { Table } from "./charts";
import { duration, money, none, number, size } from "./format";
import { useLive } from "./live";

const START = `apiVersion: coach.dev/v1alpha1
kind: TrainingJob
metadata:
  name: digits
spec:
  model: {file: functions/models/lenet.py}
  data: {uri: .data/mnist-digits, format: digits-json}
  target: {loss: 0.13, epochsInARow: 3}
  budget: {amount: 0.02, currency: USD}
  timeLimit: 10m
  workers: {min: 1, max: 2}
  servers: {min: 1, max: 2}
  batchSize: 128
  optimizer: {name: sgd, learningRate: 0.025}
`;
const DRAFT = "coach-draft";

// The text that the next visit begins with.
export const draft = (text: string) => sessionStorage.setItem(DRAFT, text);

export function SubmitPage() {
  const { cluster } = useLive();
  const [text, setText] = useState(() => sessionStorage.getItem(DRAFT) ?? START);
  const [folder, setFolder] = useState("");
  const [problems, setProblems] = useState<Problem[]>([]);
  const [warnings, setWarnings] = useState<string[]>([]);
  const [plans, setPlans] = useState<Plan[] | null>(null);
  const [checked, setChecked] = useState("");
  const [error, setError] = useState("");
  const [sending, setSending] = useState(false);
  const editor = useRef<HTMLTextAreaElement>(null);
  const gutter = useRef<HTMLPreElement>(null);
  const key = useRef(word());
  const base = folder || cluster?.folders[0] || "";
  const files = () => ({ files: [{ path: `${base.replace(/\/$/, "")}/job.yaml`, text }] });
  useEffect(() => sessionStorage.setItem(DRAFT, text), [text]);
  useEffect(() => {
    if (!base) return;
    let on = true;
    key.current = word();
    const timer = setTimeout(async () => {
      try {
        const found = await post<Schema["Checked"]>("/validate", files());
        if (!on) return;
        setProblems(found.problems);
        setWarnings(found.warnings);
        setError("");
        const planned = found.valid ? (await post<Schema["Plans"]>("/plan", files())).plans : null;
        if (!on) return;
        setPlans(planned);
        setChecked(base + text);
      } catch (failure) {
        if (!on) return;
        const refused = failure instanceof Refused ? failure : null;
        setPlans(null);
        setError([refused?.message ?? String(failure), ...(refused?.problems.map((one) => one.text) ?? [])].join(" "));
      }
    }, 350);
    return () => {
      on = false;
      clearTimeout(timer);
    };
  }, [text, base]);
  const fresh = checked === base + text;
  const ready = fresh && plans !== null && problems.length === 0;
  const send = async () => {
    setSending(true);
    setError("");
    try {
      const taken = await post<Schema["Submitted"]>("/jobs", files(), { "Idempotency-Key": key.current });
      sessionStorage.removeItem(DRAFT);
      location.hash = taken.jobs.length === 1 ? `#/jobs/${encodeURIComponent(taken.jobs[0]!.job.name)}` : "#/";
    } catch (failure) {
      setError(failure instanceof Error ? failure.message : String(failure));
      setSending(false);
    }
  };
  const jump = (problem: Problem) => {
    const lines = text.split("\n");
    const start = lines.slice(0, problem.line - 1).reduce((sum, line) => sum + line.length + 1, 0);
    editor.current?.focus();
    editor.current?.setSelectionRange(start, start + (lines[problem.line - 1]?.length ?? 0));
  };
  const wrong = new Set(problems.map((problem) => problem.line));
  const count = text.split("\n").length;
  return (
    <section class="submit">
      <h1>Submit</h1>
      <div class="tools">
        <label>
          Paths in the file are relative to{" "}
          <input type="text" value={base} onInput={(event) => setFolder(event.currentTarget.value)} />
        </label>
        <label class="file">
          Open a file{" "}
          <input
            type="file"
            accept=".yaml,.yml"
            onChange={(event) => void event.currentTarget.files?.[0]?.text().then(setText)}
          />
        </label>
      </div>
      <div class="columns">
        <div>
          <div class="editor">
            <pre ref={gutter} aria-hidden="true">
              {Array.from({ length: count }, (_, index) => (
                <span key={index} class={wrong.has(index + 1) ? "wrong" : ""}>
                  {wrong.has(index + 1) ? "▸" : " "}
                  {index + 1}
                  {"\n"}
                </span>
              ))}
            </pre>
            <textarea
              ref={editor}
              aria-label="Job file"
              aria-describedby="mistakes"
              aria-invalid={problems.length > 0}
              spellcheck={false}
              wrap="off"
              rows={Math.min(40, Math.max(18, count + 1))}
              value={text}
              onInput={(event) => setText(event.currentTarget.value)}
              onScroll={(event) => gutter.current && (gutter.current.scrollTop = event.currentTarget.scrollTop)}
            />
          </div>
        </div>
        <div>
          <div id="mistakes" role="status">
            {problems.length > 0 && (
              <>
                <h2>
                  {problems.length} {problems.length === 1 ? "mistake" : "mistakes"}
                </h2>
                <ul class="problems">
                  {problems.map((problem, index) => (
                    <li key={index}>
                      <button type="button" class="link" onClick={() => jump(problem)}>
                        Line {problem.line}
                      </button>{" "}
                      <b>{problem.field}</b> {problem.problem}: {problem.seen}; {problem.right}
                    </li>
                  ))}
                </ul>
              </>
            )}
            {warnings.map((line) => (
              <p key={line}>{line}</p>
            ))}
            {!fresh && !error && <p>Checking…</p>}
          </div>
          {problems.length === 0 && plans?.map((plan) => <PlanView key={plan.name} plan={plan} />)}
          {error && (
            <p class="error" role="alert">
              {error}
            </p>
          )}
          <p class="buttons">
            <button type="button" class="primary" disabled={!ready || sending} onClick={() => void send()}>
              {plans && problems.length === 0 ? `Submit: ${limit(plans)}` : "Submit"}
            </button>
          </p>
        </div>
      </div>
    </section>
  );
}

function limit(plans: Plan[]): string {
  const sums = new Map<string, number>();
  for (const plan of plans) {
    if (plan.budget === null) return "without a limit on money";
    sums.set(plan.currency, (sums.get(plan.currency) ?? 0) + plan.budget);
  }
  return `up to ${[...sums].map(([currency, sum]) => money(sum, currency)).join(" and ")}`;
}

function PlanView({ plan }: { plan: Plan }) {
  const known = plan.rows.some((row) => row.seconds !== null);
  return (
    <section class="plan">
      <h2>Plan of {plan.name}</h2>
      <ul>
        <li>
          epochs: {number(plan.epochs, 2)} ({number(plan.epochs_low, 2)}–{number(plan.epochs_high, 2)})
          {!plan.epochs_known && ", a guess"}
        </li>
        {plan.known.map((line) => (
          <li key={line}>known: {line}</li>
        ))}
        {plan.unknown.map((line) => (
          <li key={line}>not known: {line}</li>
        ))}
        {plan.probes.length > 0 && <li>measures {plan.probes.join(", ")} first, in mini-epochs that train too</li>}
        {plan.refusal && <li class="error">it would end at once: {plan.refusal}</li>}
      </ul>
      <Table
        name={`plan of ${plan.name}`}
        head={
          known
            ? ["W×S", "An epoch takes", "It costs", "The job takes (80 %)", "The job costs (80 %)", ""]
            : ["W×S", "Costs an hour", "The budget lasts", ""]
        }
        rows={plan.rows.map((row) => [
          size(row.workers, row.servers),
          ...(known
            ? [
                duration(row.seconds),
                money(row.cost, plan.currency),
                row.job_seconds === null
                  ? none
                  : `${duration(row.job_seconds)} (${duration(row.job_seconds_low)}–${duration(row.job_seconds_high)})`,
                row.job_cost === null
                  ? none
                  : `${money(row.job_cost, plan.currency)} (${money(row.job_cost_low, plan.currency)}–${money(row.job_cost_high, plan.currency)})`,
              ]
            : [
                money(row.cost_per_hour, plan.currency),
                duration(row.hours_within_budget === null ? null : row.hours_within_budget * 3600),
              ]),
          [
            row.measured && "measured",
            !row.fits && "more than the cluster has",
            row.within_budget === false && "more than the budget",
          ]
            .filter(Boolean)
            .join(", "),
        ])}
      />
    </section>
  );
}

// A key for this content: a second click, or a retry, starts nothing more.
function word(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
