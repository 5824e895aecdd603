// Searches: the best trial of each, its money, and its trials.
import { get, type Search, type SearchDetail } from "./api";
import { money, none, words } from "./format";
import { useAnswer } from "./live";
import { Bar } from "./parts";

const written = (parameters: Record<string, unknown> | null) =>
  parameters ? Object.entries(parameters).map(([key, value]) => `${key}=${typeof value === "number" ? +value.toPrecision(4) : value}`).join(" ") : none;
const number = (value: number | null) => (value === null ? none : `${+value.toPrecision(4)}`);

function Row({ one }: { one: Search }) {
  const finals =
    one.final_mean === null
      ? ""
      : `; with ${one.final_values.length} other seeds ${number(one.final_mean)}${one.final_half === null ? "" : ` ± ${+one.final_half.toPrecision(2)}`}`;
  return (
    <tr>
      <th scope="row">
        <a href={`#/searches/${encodeURIComponent(one.search)}`}>{one.search}</a>
      </th>
      <td>{one.running ? "searching" : one.outcome || "paused"}</td>
      <td>{one.trials}</td>
      <td>{one.job ? <a href={`#/jobs/${encodeURIComponent(one.job)}`}>{one.job}</a> : none}</td>
      <td>{one.value === null ? none : `${one.metric} ${number(one.value)}${finals}`}</td>
      <td>{written(one.parameters)}</td>
      <td>
        <Bar spent={one.spent} reserved={0} total={one.spent + one.left} label={`spent ${money(one.spent, one.currency)}`} />{" "}
        {money(one.spent, one.currency)}, {money(one.left, one.currency)} left
      </td>
    </tr>
  );
}

export function SearchesPage({ name }: { name?: string }) {
  const { found, message } = useAnswer<{ searches: Search[]; detail?: SearchDetail }>(
    () =>
      name
        ? get<SearchDetail>(`/searches/${encodeURIComponent(name)}`).then((detail) => ({ searches: [detail.search], detail }))
        : get("/searches"),
    name,
  );
  if (!found) return <p>{message || "Loading…"}</p>;
  return (
    <section>
      <h1>{name ? `Search ${name}` : "Searches"}</h1>
      {message && <p role="alert">{message}</p>}
      {found.searches.length === 0 ? (
        <p class="notice">
          No search yet. In a terminal: <code>coach search job.yaml --set optimizer.learningRate=0.01,0.1 --budget 1USD</code>
        </p>
      ) : (
        <div class="wide">
          <table aria-label="Searches">
            <thead>
              <tr>
                <th>Name</th>
                <th>State</th>
                <th>Trials</th>
                <th>Best</th>
                <th>Its value</th>
                <th>Its parameters</th>
                <th>Spent</th>
              </tr>
            </thead>
            <tbody>
              {found.searches.map((one) => (
                <Row key={one.search} one={one} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {found.detail && (
        <>
          <h2>Trials</h2>
          <div class="wide">
            <table aria-label="Trials">
              <thead>
                <tr>
                  <th>Job</th>
                  <th>Parameters</th>
                  <th>State</th>
                  <th>Epochs</th>
                  <th>Best {found.detail.search.metric}</th>
                  <th>Spent</th>
                  <th>Why</th>
                </tr>
              </thead>
              <tbody>
                {found.detail.trials.map((trial) => (
                  <tr key={trial.job}>
                    <th scope="row">
                      <a href={`#/jobs/${encodeURIComponent(trial.job)}`}>{trial.job}</a>
                    </th>
                    <td>{written(trial.parameters)}</td>
                    <td>{words(trial.state)}</td>
                    <td>{trial.epochs}</td>
                    <td>{number(trial.best)}</td>
                    <td>{money(trial.spent, found.detail!.search.currency)}</td>
                    <td>{trial.why}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          {found.detail.next_gain !== null && (
            <p>
              As much money again would probably improve it by {number(found.detail.next_gain)}:{" "}
              <code>coach search --resume {found.detail.search.search} --budget AMOUNT</code>
            </p>
          )}
        </>
      )}
    </section>
  );
}
