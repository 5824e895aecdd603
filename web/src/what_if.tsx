// What if: jobs of the service under other policies, on other nodes, with other money; simulated, nothing is started.
import { useState } from "preact/hooks";
import { Refused, Schema, post } from "./api";
import { Table } from "./charts";
import { count, duration, money, none, words } from "./format";
import { useLive } from "./live";

const POLICIES = ["coach", "coach:mean-completion", "static:1x1", "static:2x1", "static:2x2"];
type Nodes = { count: string; cpu: string; memory: string; gpu: string };

export function WhatIfPage({ names }: { names: string[] }) {
  const { jobs, cluster } = useLive();
  const [policies, setPolicies] = useState("coach, static:1x1");
  const [nodes, setNodes] = useState<Nodes>({ count: "", cpu: "", memory: "", gpu: "" });
  const [budget, setBudget] = useState("");
  const [answer, setAnswer] = useState<Schema["Simulated"] | null>(null);
  const [error, setError] = useState("");
  const [asking, setAsking] = useState(false);
  const given = Object.values(nodes).some(Boolean);
  // What is left empty is as the service's nodes have it.
  const { cpu = 1, memory = 1, gpu = 0 } = cluster?.nodes[0] ?? {};
  const own = { count: cluster?.nodes.length || 1, cpu, memory, gpu };
  const simulate = async () => {
    setAsking(true);
    setError("");
    setAnswer(null);
    try {
      setAnswer(
        await post<Schema["Simulated"]>("/simulations", {
          jobs: names,
          policies: policies.split(/[\s,]+/).filter(Boolean),
          nodes: given
            ? {
                count: Number(nodes.count || own.count),
                cpu: Number(nodes.cpu || own.cpu),
                memory: Number(nodes.memory || own.memory),
                gpu: Number(nodes.gpu || own.gpu),
              }
            : null,
          budget: budget ? Number(budget) : null,
        }),
      );
    } catch (failure) {
      const refused = failure instanceof Refused ? failure : null;
      setError([refused?.message ?? String(failure), ...(refused?.problems.map((one) => one.text) ?? [])].join(" "));
    }
    setAsking(false);
  };
  const field = (name: keyof Nodes, label: string) => (
    <label>
      {label}{" "}
      <input
        type="number"
        min="0"
        step="any"
        size={6}
        placeholder={String(own[name])}
        value={nodes[name]}
        onInput={(event) => setNodes({ ...nodes, [name]: event.currentTarget.value })}
      />
    </label>
  );
  const currency = jobs.get(names[0] ?? "")?.currency ?? "";
  return (
    <section class="what-if">
      <h1>What if</h1>
      <p>
        {names.join(", ")}: simulated from the beginning{names.length > 1 && ", all begun together"}, once under each
        policy. Nothing is started, nothing is spent.
      </p>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void simulate();
        }}
      >
        <div class="tools">
          <label>
            Policies{" "}
            <input type="text" size={40} value={policies} list="policies" onInput={(event) => setPolicies(event.currentTarget.value)} />
          </label>
          <datalist id="policies">
            {POLICIES.map((name) => (
              <option key={name} value={name} />
            ))}
          </datalist>
          <label>
            Budget of each job{currency && `, in ${currency}`}{" "}
            <input
              type="number"
              min="0"
              step="any"
              placeholder="its own"
              value={budget}
              onInput={(event) => setBudget(event.currentTarget.value)}
            />
          </label>
        </div>
        <fieldset class="tools">
          <legend>Nodes, all alike; what is empty, as the service has it</legend>
          {field("count", "Number")}
          {field("cpu", "Cores")}
          {field("memory", "Memory, GiB")}
          {field("gpu", "GPUs")}
        </fieldset>
        <p>
          <button class="primary" type="submit" disabled={asking || names.length === 0}>
            {asking ? "Simulating…" : "Simulate"}
          </button>
        </p>
      </form>
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
      {answer && <Answer found={answer} currency={(name) => jobs.get(name)?.currency ?? ""} />}
    </section>
  );
}

function Answer({ found, currency }: { found: Schema["Simulated"]; currency: (job: string) => string }) {
  return (
    <>
      <h2>Simulated on {count(found.nodes, "node")}</h2>
      <Table
        name="Simulated"
        head={["Policy", "Job", "Done after", "Waited", "Spent", "Target"]}
        rows={found.runs.flatMap((run) => [
          ...run.jobs.map((job) => [
            run.policy,
            job.job,
            job.end === null ? none : duration(job.end - (job.arrival ?? 0)),
            job.start === null ? none : duration(job.start - (job.arrival ?? 0)),
            money(job.cost, currency(job.job)),
            job.reached ? "reached" : words(job.why || "not reached").toLowerCase(),
          ]),
          ...(run.jobs.length > 1 ? [[run.policy, <strong>all</strong>, duration(run.seconds), "", "", ""]] : []),
        ])}
      />
      <ul>
        {found.origins.map((one) => (
          <li key={one.origin}>
            {one.origin}: {one.jobs.join(", ")}
          </li>
        ))}
      </ul>
    </>
  );
}
