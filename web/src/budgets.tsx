// Budgets over jobs: what each has spent, and who spent it on what.
import { get, type Account, type SpendingRow } from "./api";
import { money, none, when, words } from "./format";
import { useAnswer } from "./live";
import { Bar } from "./parts";

const DAY = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeZone: "UTC" });

function terms(account: Account): string {
  const per = account.period === "ever" ? "" : `/${account.period}`;
  return money(account.amount, account.currency) + per;
}

function forecast(account: Account): string {
  if (account.forecast === null) return none;
  const [low, high] = [account.forecast_low, account.forecast_high].map((one) => money(one, "").trim());
  return `${money(account.forecast, account.currency)} (${low} to ${high})`;
}

export function BudgetsPage() {
  const { found, message } = useAnswer(async () => {
    const [{ accounts }, { rows }] = await Promise.all([
      get<{ accounts: Account[] }>("/accounts"),
      get<{ rows: SpendingRow[] }>("/spending"),
    ]);
    return { accounts, rows };
  });
  if (!found) return <p>{message || "Loading…"}</p>;
  const inside = (account: Account): number => {
    const parent = found.accounts.find((one) => one.name === account.parent);
    return parent ? 1 + inside(parent) : 0;
  };
  return (
    <section>
      <h1>Budgets</h1>
      {message && <p role="alert">{message}</p>}
      {found.accounts.length === 0 ? (
        <p class="notice">
          No budget over jobs yet. In a terminal: <code>coach budget set team-a 50USD/month</code>
        </p>
      ) : (
        <div class="wide">
          <table aria-label="Budgets">
            <thead>
              <tr>
                <th>Name</th>
                <th>Pays jobs</th>
                <th>Budget</th>
                <th>Spent, reserved</th>
                <th>Left</th>
                <th>Forecast</th>
                <th>Runs out</th>
                <th>Next period</th>
                <th>Jobs</th>
              </tr>
            </thead>
            <tbody>
              {found.accounts.map((account) => (
                <tr key={account.name}>
                  <th scope="row" style={{ paddingLeft: `${0.5 + inside(account)}rem` }}>
                    {account.name}
                  </th>
                  <td>{account.labels ? `with ${account.labels}` : "that name it"}</td>
                  <td>{terms(account)}</td>
                  <td>
                    <Bar
                      spent={account.spent}
                      reserved={account.reserved}
                      total={account.amount}
                      label={`spent ${money(account.spent, account.currency)}, reserved ${money(account.reserved, account.currency)}`}
                    />{" "}
                    {money(account.spent, "").trim()} + {money(account.reserved, account.currency)}
                  </td>
                  <td>{money(account.left, account.currency)}</td>
                  <td>{forecast(account)}</td>
                  <td>{account.runs_out ? when(account.runs_out) : none}</td>
                  <td>{account.until ? when(account.until) : none}</td>
                  <td>
                    {account.jobs}
                    {account.waiting > 0 && `, ${account.waiting} waiting`}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {found.rows.length > 0 && (
        <>
          <h2>Who spent what</h2>
          <div class="wide">
            <table aria-label="Who spent what">
              <thead>
                <tr>
                  <th>Budget</th>
                  <th>Since</th>
                  <th>Job</th>
                  <th>State</th>
                  <th>Spent</th>
                </tr>
              </thead>
              <tbody>
                {found.rows.map((row) => (
                  <tr key={`${row.account} ${row.since} ${row.job}`}>
                    <td>{row.account}</td>
                    <td>{row.since ? DAY.format(new Date(row.since)) : none}</td>
                    <th scope="row">
                      <a href={`#/jobs/${encodeURIComponent(row.job)}`}>{row.job}</a>
                    </th>
                    <td>{words(row.state)}</td>
                    <td>{money(row.spent, row.currency)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          <p>
            As a table for other programs: <code>coach budget report -o csv</code>
          </p>
        </>
      )}
    </section>
  );
}
