// Requests to the service. Paths are relative to the page, so it works under a path of a proxy.
import type { components } from "./api-types";

export type Schema = components["schemas"];
export type Job = Schema["JobDetails"];
export type Detail = Schema["JobDetail"];
export type Why = Schema["Why"];
export type Figures = Schema["Figures"];
export type Cluster = Schema["Cluster"];
export type Comparison = Schema["Comparison"];
export type Events = Schema["Events"];
export type Problem = Schema["Problem"];
export type Plan = Schema["Plan"];
export type Account = Schema["AccountRow"];
export type SpendingRow = Schema["SpendingRow"];
export type Search = Schema["SearchRow"];
export type SearchDetail = Schema["SearchDetail"];

export const API = "../api/v1";

export class Refused extends Error {
  constructor(readonly status: number, message: string, readonly problems: Problem[] = []) {
    super(message);
  }
}

async function ask<T>(method: string, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(API + path, {
      method,
      credentials: "same-origin",
      headers: body === undefined ? headers : { "Content-Type": "application/json", ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Refused(0, "the service does not answer");
  }
  const found = await answer.json().catch(() => ({ error: `no answer of Coach's (${answer.status})` }));
  if (!answer.ok) throw new Refused(answer.status, String(found.error), found.problems ?? []);
  return found as T;
}

export const get = <T>(path: string) => ask<T>("GET", path);
export const post = <T>(path: string, body: unknown = {}, headers?: Record<string, string>) =>
  ask<T>("POST", path, body, headers);
export const jobPath = (name: string) => `/jobs/${encodeURIComponent(name)}`;
