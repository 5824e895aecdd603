// What the page knows of all jobs, kept up to date by one stream of events; closed while the page is hidden.
import { useEffect, useState } from "preact/hooks";
import { API, Cluster, Job, Refused, get, post } from "./api";
import { Paced } from "./paced";

export type Connection = "starting" | "live" | "lost" | "login" | "paused";

class Live {
  jobs = new Map<string, Job>();
  progress: Record<string, number> = {};
  connection: Connection = "starting";
  cluster: Cluster | null = null;
  // Rows of the queue that are shown, at most.
  queued = 100;
  version = 0;
  message = "";
  private place = "";
  private log: { name: string; after: number; take: (text: string, begin: boolean) => void } | null = null;
  private source: EventSource | null = null;
  private listeners = new Set<() => void>();
  private frame = 0;
  private retry = 0;
  private paced = new Paced(500);

  async begin(): Promise<void> {
    const found = /^#login=([^/]+)(\/.*)?$/.exec(location.hash);
    if (found) {
      history.replaceState(null, "", `#${found[2] ?? "/"}`);
      try {
        await post("/login", { code: found[1] });
      } catch (error) {
        this.message = error instanceof Error ? error.message : String(error);
      }
    }
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : void this.load()));
    addEventListener("pageshow", (event) => event.persisted && void this.load());
    await this.load();
  }

  // Everything anew, then the stream from there.
  async load(): Promise<void> {
    clearTimeout(this.retry);
    this.source?.close();
    this.source = null;
    try {
      const listed = await get<{ jobs: Job[]; stream: string }>("/jobs");
      this.jobs = new Map(listed.jobs.map((job) => [job.name, job]));
      this.place = listed.stream;
      this.message = "";
      if (!document.hidden) this.listen();
      this.refreshCluster();
    } catch (error) {
      const status = error instanceof Refused ? error.status : 0;
      this.set(status === 401 || status === 403 ? "login" : "lost");
      if (status !== 401 && status !== 403) this.retry = window.setTimeout(() => void this.load(), 1000);
    }
    this.changed();
  }

  private listen(): void {
    const log = this.log;
    const wanted = log ? `&log=${encodeURIComponent(log.name)}&log_after=${log.after}` : "";
    const source = new EventSource(`${API}/stream?after=${encodeURIComponent(this.place)}${wanted}`);
    this.source = source;
    source.onopen = () => {
      log?.take("", true);  // a stream that is opened again has the log from there once more
      this.set("live");
    };
    source.onerror = () => {
      if (this.source !== source) return;
      this.set("lost");
      // It tries again by itself unless it has given up, as after an answer that is no stream.
      if (source.readyState === EventSource.CLOSED) this.retry = window.setTimeout(() => void this.load(), 1000);
    };
    source.addEventListener("jobs", (event) => {
      for (const job of JSON.parse(event.data).jobs as Job[]) this.jobs.set(job.name, job);
      this.place = event.lastEventId;
      this.changed();
    });
    source.addEventListener("progress", (event) => {
      this.progress = JSON.parse(event.data);
      this.changed();
    });
    source.addEventListener("log", (event) => log?.take(JSON.parse(event.data).text, false));
    source.addEventListener("reset", () => void this.load());
  }

  // The lines of one log from byte `after` on, in the one stream; until what it answers is called.
  follow(name: string, after: number, take: (text: string, begin: boolean) => void): () => void {
    const log = { name, after, take };
    this.log = log;
    this.reopen();
    return () => {
      if (this.log !== log) return;
      this.log = null;
      this.reopen();
    };
  }

  private reopen(): void {
    if (!this.source) return;
    this.source.close();
    this.listen();
  }

  private pause(): void {
    clearTimeout(this.retry);
    this.source?.close();
    this.source = null;
    this.set("paused");
  }

  refreshCluster(): void {
    this.paced.ask = async () => {
      this.cluster = await get<Cluster>(`/cluster?limit=${this.queued}`);
      this.changed();
    };
    this.paced.want();
  }

  private set(connection: Connection): void {
    if (this.connection === connection) return;
    this.connection = connection;
    this.changed();
  }

  private changed(): void {
    this.version++;
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      for (const listener of this.listeners) listener();
    });
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}

export const live = new Live();

export function useLive(): Live {
  const [, set] = useState(0);
  useEffect(() => live.subscribe(() => set(live.version)), []);
  return live;
}

// What `look` answers, asked again a second after a job changed, or at once for another `key`; and what went wrong.
export function useAnswer<T>(look: () => Promise<T>, key = ""): { found: T | null; message: string } {
  const { jobs } = useLive();
  const [answer, set] = useState<{ key: string; found: T } | null>(null);
  const [message, say] = useState("");
  const seq = [...jobs.values()].reduce((last, job) => Math.max(last, job.seq), 0);
  const found = answer?.key === key ? answer.found : null;
  useEffect(() => {
    let here = true;
    const ask = async () => {
      try {
        const now = await look();
        if (here) set({ key, found: now });
        if (here) say("");
      } catch (error) {
        if (here) say(String((error as Error).message));
      }
    };
    const soon = setTimeout(ask, found ? 1000 : 0);
    return () => {
      here = false;
      clearTimeout(soon);
    };
  }, [seq, key]);
  return { found, message };
}

export function useRoute(): string[] {
  const read = () => location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  const [route, set] = useState(read);
  useEffect(() => {
    const listen = () => set(read());
    addEventListener("hashchange", listen);
    return () => removeEventListener("hashchange", listen);
  }, []);
  return route;
}
