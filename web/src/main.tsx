import "./style.css";
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { BudgetsPage } from "./budgets";
import { SearchesPage } from "./searches";
import { ClusterPage } from "./cluster";
import { ComparePage } from "./compare";
import { money } from "./format";
import { JobPage } from "./job";
import { JobsPage } from "./jobs";
import { live, useLive, useRoute } from "./live";
import { Hatch } from "./parts";
import { SubmitPage } from "./submit";
import { WhatIfPage } from "./what_if";

function Totals() {
  const sums = new Map<string, [number, number, number]>();
  for (const job of live.jobs.values()) {
    const sum = sums.get(job.currency) ?? [0, 0, 0];
    sums.set(job.currency, [sum[0] + job.spent, sum[1] + job.reserved, sum[2] + (job.rate ?? 0)]);
  }
  return (
    <span class="totals">
      {[...sums].map(([currency, [spent, reserved, rate]]) => (
        <span key={currency}>
          spent {money(spent, currency)} · reserved {money(reserved, currency)} · {money(rate, currency)}/h
        </span>
      ))}
    </span>
  );
}

const CONNECTION = {
  starting: "connecting",
  live: "live",
  lost: "the service does not answer; trying again",
  login: "log in again",
  paused: "paused",
} as const;

function App() {
  const { connection, cluster, message, jobs } = useLive();
  const route = useRoute();
  const [place = "", name = "", tab = ""] = route;
  useEffect(() => {
    const what = place === "jobs" && name ? name : place ? place.charAt(0).toUpperCase() + place.slice(1) : "Jobs";
    document.title = `${what} - Coach`;
  }, [place, name]);
  const link = (to: string, text: string) => (
    <a href={`#/${to}`} aria-current={place === to || (!to && place === "jobs") ? "page" : undefined}>
      {text}
    </a>
  );
  return (
    <>
      <Hatch />
      <header>
        <a class="brand" href="#/">
          Coach
        </a>
        <nav aria-label="Pages">
          {link("", "Jobs")}
          {link("cluster", "Cluster")}
          {link("budgets", "Budgets")}
          {link("searches", "Searches")}
          {cluster && !cluster.read_only && link("submit", "Submit")}
        </nav>
        <Totals />
        <span class={`connection ${connection}`} role="status">
          {cluster?.read_only && connection === "live" ? "live, read only" : CONNECTION[connection]}
        </span>
      </header>
      <main>
        {connection === "login" ? (
          <section class="notice" role="alert">
            <h1>Not logged in</h1>
            {message && <p>{message}</p>}
            <p>
              In a terminal on the service's machine: <code>coach ui</code>. It opens this page with a code that logs
              this browser in once.
            </p>
          </section>
        ) : connection === "starting" && !jobs.size ? (
          <p>Loading…</p>
        ) : place === "jobs" && name ? (
          <JobPage key={name} name={name} tab={tab || "overview"} />
        ) : place === "cluster" ? (
          <ClusterPage />
        ) : place === "compare" && name ? (
          <ComparePage names={name.split(",")} />
        ) : place === "what-if" && name ? (
          <WhatIfPage names={name.split(",")} />
        ) : place === "budgets" ? (
          <BudgetsPage />
        ) : place === "searches" ? (
          <SearchesPage key={name} name={name} />
        ) : place === "submit" && !cluster?.read_only ? (
          <SubmitPage />
        ) : place === "" || place === "jobs" ? (
          <JobsPage />
        ) : (
          <section class="notice">
            <h1>No such page</h1>
            <a href="#/">All jobs</a>
          </section>
        )}
      </main>
    </>
  );
}

void live.begin();
render(<App />, document.getElementById("page")!);
