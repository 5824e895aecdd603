import { useEffect } from "preact/hooks";
import { count, number, rounded, when } from "./format";
import { live, useLive } from "./live";
import { Usage } from "./parts";

export function ClusterPage() {
  const { cluster, version, jobs } = useLive();
  // Rows that changed mean other uses of nodes.
  useEffect(() => live.refreshCluster(), [[...jobs.values()].reduce((seq, job) => Math.max(seq, job.seq), 0)]);
  if (!cluster) return <p>Loading…</p>;
  void version;
  const gpus = cluster.nodes.some((node) => node.gpu > 0);
  return (
    <section>
      <h1>Cluster</h1>
      <p>
        Policy {cluster.policy}; state folder <code>{cluster.home}</code>; version {cluster.version}
        {cluster.read_only && "; no service runs here: this page only shows jobs"}
      </p>
      <h2>Nodes</h2>
      {cluster.nodes.length === 0 ? (
        <p>No nodes are known.</p>
      ) : (
        <div class="wide">
          <table>
            <thead>
              <tr>
                <th>Node</th>
                <th>Cores used</th>
                <th>Memory used</th>
                {gpus && <th>GPUs used</th>}
                <th>Held by</th>
              </tr>
            </thead>
            <tbody>
              {cluster.nodes.map((node) => (
                <tr key={node.name}>
                  <th scope="row">{node.name}</th>
                  <td>
                    <Usage used={node.cpu_used} all={node.cpu} what="cores" />
                  </td>
                  <td>
                    <Usage used={node.memory_used} all={node.memory} what="GiB" />
                  </td>
                  {gpus && (
                    <td>
                      <Usage used={node.gpu_used} all={node.gpu} what="GPUs" />
                    </td>
                  )}
                  <td>
                    {node.held_by.length === 0 && "nothing"}
                    {node.held_by.map((one) => (
                      <span class="holding" key={one.job}>
                        <a href={`#/jobs/${encodeURIComponent(one.job)}`}>{one.job}</a>: {count(one.workers, "worker")}
                        {one.servers > 0 && `, ${count(one.servers, "server")}`}
                      </span>
                    ))}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <h2>Queue</h2>
      {cluster.queue.length === 0 ? (
        <p>No job waits for the cluster.</p>
      ) : (
        <div class="wide">
          <table>
            <thead>
              <tr>
                <th>Place</th>
                <th>Job</th>
                <th>Priority</th>
                <th>Since</th>
                <th>Needs at least</th>
                <th>Why it waits</th>
              </tr>
            </thead>
            <tbody>
              {cluster.queue.map((row) => (
                <tr key={row.job}>
                  <td>{row.position}</td>
                  <th scope="row">
                    <a href={`#/jobs/${encodeURIComponent(row.job)}`}>{row.job}</a>
                  </th>
                  <td>{row.priority}</td>
                  <td>{when(row.since, true)}</td>
                  <td>
                    {number(row.cpu)} cores, {number(row.memory)} GiB
                  </td>
                  <td>{rounded(row.message || row.reason_text)}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {cluster.next && (
            <p>
              The first {cluster.queue.length} of {cluster.waiting} jobs that wait.{" "}
              {live.queued < 1000 && (
                <button
                  type="button"
                  onClick={() => {
                    live.queued += 100;
                    live.refreshCluster();
                  }}
                >
                  Show more
                </button>
              )}
            </p>
          )}
        </div>
      )}
    </section>
  );
}
