// Suspend, resume, cancel, add budget: what is at stake is said before.
import { useEffect, useState } from "preact/hooks";
import { Job, Schema, get, jobPath, post } from "./api";
import { money } from "./format";
import { Dialog } from "./parts";

type Action = Schema["Action"];
type Consequences = Schema["Consequences"];

const TITLES: Record<string, string> = {
  cancel: "Cancel now",
  suspend: "Suspend at the end of the epoch",
  "suspend-now": "Suspend now",
  resume: "Resume",
  "add-budget": "Add budget",
};

export function Actions({ job, actions, done }: { job: Job; actions: Action[]; done: () => void }) {
  const [asked, setAsked] = useState("");
  const close = () => {
    setAsked("");
    done();
  };
  return (
    <span class="actions">
      {actions.map((one) => (
        <button key={one.action} type="button" title={one.command} onClick={() => setAsked(one.action)}>
          {one.text}
        </button>
      ))}
      {asked && <Ask job={job} of={asked} close={close} change={setAsked} />}
    </span>
  );
}

function Ask({ job, of, close, change }: { job: Job; of: string; close: () => void; change: (of: string) => void }) {
  const [said, setSaid] = useState<Consequences | null>(null);
  const [budget, setBudget] = useState(String(job.budget === null ? "" : +(job.budget * 2).toPrecision(6)));
  const [error, setError] = useState("");
  const [sending, setSending] = useState(false);
  useEffect(() => {
    const ask = () => get<Consequences>(`${jobPath(job.name)}/consequences?of=${of}`).then(setSaid, (e) => setError(e.message));
    void ask();
    const timer = setInterval(ask, 2000);
    return () => clearInterval(timer);
  }, [of]);
  const send = async () => {
    setSending(true);
    setError("");
    try {
      const path = jobPath(job.name);
      // The new total, not an addition: sent twice, it is given once.
      if (of === "add-budget") await post(`${path}/resume`, { budget: Number(budget) });
      else if (of === "resume") await post(`${path}/resume`);
      else if (of === "cancel") await post(`${path}/cancel`);
      else await post(`${path}/suspend`, { now: of === "suspend-now" });
      close();
    } catch (failure) {
      setError(failure instanceof Error ? failure.message : String(failure));
      setSending(false);
    }
  };
  const total = Number(budget);
  const wrong = of === "add-budget" && !(total > (job.budget ?? 0));
  const added = of === "add-budget" && !wrong ? money(total - (job.budget ?? 0), job.currency) : "";
  return (
    <Dialog title={`${TITLES[of]}: ${job.name}`} close={close}>
      <p class="stake" role="status">
        {said ? said.text : "Looking up what this would do…"}
      </p>
      {of === "suspend" && job.reason !== "Suspended" && (
        <p>
          <button type="button" class="link" onClick={() => change("suspend-now")}>
            Not at the end of the epoch, but now
          </button>
        </p>
      )}
      {of === "add-budget" && (
        <p>
          <label>
            Budget from now on, in {job.currency}{" "}
            <input
              type="number"
              min={job.budget ?? 0}
              step="any"
              value={budget}
              aria-invalid={wrong}
              onInput={(event) => setBudget(event.currentTarget.value)}
            />
          </label>{" "}
          {wrong ? `must be more than ${money(job.budget, job.currency)}` : `that is ${added} more`}
        </p>
      )}
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
      <p class="buttons">
        <button type="button" onClick={close}>
          Back
        </button>
        <button
          type="button"
          class={of === "cancel" ? "danger" : "primary"}
          disabled={sending || wrong || !said?.allowed}
          onClick={() => void send()}
        >
          {of === "add-budget" && added ? `Add ${added}` : TITLES[of]}
        </button>
      </p>
    </Dialog>
  );
}
