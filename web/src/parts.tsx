// Small parts that several pages use.
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Job } from "./api";
import { money, number, words } from "./format";

const GOOD = new Set(["Succeeded"]);
const BAD = new Set(["Failed", "BudgetExhausted", "TargetUnreachable"]);
const BUSY = new Set(["Training", "Probing"]);

export function State({ job }: { job: Job }) {
  const kind = GOOD.has(job.state) ? "good" : BAD.has(job.state) ? "bad" : BUSY.has(job.state) ? "busy" : "quiet";
  const sign = { good: "✓", bad: "✕", busy: "●", quiet: "○" }[kind];
  return (
    <span class={`state ${kind}`}>
      <span aria-hidden="true">{sign}</span> {words(job.state)}
    </span>
  );
}

export function purse(job: Job): string {
  const spent = `spent ${money(job.spent, job.currency)}`;
  const held = job.reserved ? `, reserved ${money(job.reserved, job.currency)}` : "";
  if (job.budget === null) return `${spent}${held}, ${job.account === null ? "no budget" : `paid by ${job.account}`}`;
  return `${spent}${held}, left ${money(job.left, job.currency)} of ${money(job.budget, job.currency)}`;
}

// Money is one bar everywhere: spent solid, reserved hatched, left empty.
export function MoneyBar({ job }: { job: Job }) {
  const total = job.budget ?? Math.max(job.spent + job.reserved, 1e-12);
  return <Bar spent={job.spent} reserved={job.reserved} total={total} label={purse(job)} />;
}

type Purse = { spent: number; reserved: number; total: number; label: string };

export function Bar({ spent: used, reserved, total: all, label }: Purse) {
  const total = Math.max(all, 1e-12);
  const spent = (100 * Math.min(used, total)) / total;
  const held = (100 * Math.min(reserved, total - used)) / total;
  return (
    <svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label={label}>
      <rect class="left" x="0" y="0" width="100" height="10" />
      <rect class="spent" x="0" y="0" width={spent} height="10" />
      <rect class="reserved" x={spent} y="0" width={Math.max(0, held)} height="10" fill="url(#hatch)" />
    </svg>
  );
}

export function Hatch() {
  return (
    <svg class="hidden" width="0" height="0" aria-hidden="true">
      <pattern id="hatch" width="3" height="10" patternUnits="userSpaceOnUse" patternTransform="skewX(-20)">
        <rect width="1.5" height="10" class="hatch" />
      </pattern>
    </svg>
  );
}

export function Usage({ used, all, what }: { used: number; all: number; what: string }) {
  const share = all ? Math.min(100, (100 * used) / all) : 0;
  return (
    <span class="usage">
      <svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
        <rect class="left" width="100" height="10" />
        <rect class="spent" width={share} height="10" />
      </svg>
      {number(used)} of {number(all)} {what}
    </span>
  );
}

export function Spark({ values, label }: { values: number[]; label: string }) {
  if (values.length < 2) return null;
  const low = Math.min(...values);
  const span = Math.max(...values) - low || 1;
  const points = values.map((value, index) => {
    const x = (index * 58) / (values.length - 1) + 1;
    return `${x.toFixed(1)},${(17 - ((value - low) * 14) / span).toFixed(1)}`;
  });
  return (
    <svg class="spark" viewBox="0 0 60 20" role="img" aria-label={label}>
      <polyline points={points.join(" ")} />
    </svg>
  );
}

export function Dialog({ title, close, children }: { title: string; close: () => void; children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} onClose={close} aria-labelledby="dialog-title">
      <h2 id="dialog-title">{title}</h2>
      {children}
    </dialog>
  );
}
