// Questions to the service that are asked again and again.
import { useEffect, useState } from "preact/hooks";

export class Paced {
  ask: () => Promise<unknown> = async () => undefined;
  private asking = false;
  private again = false;
  private begun = -Infinity;
  private timer = 0;

  constructor(private readonly gap: number) {}

  // One at a time, `gap` ms from one to the next; wanted while it is asked, it is asked once more afterwards.
  want(): void {
    if (this.asking) this.again = true;
    else this.timer ||= window.setTimeout(() => void this.run(), Math.max(0, this.begun + this.gap - performance.now()));
  }

  private async run(): Promise<void> {
    this.timer = 0;
    this.asking = true;
    this.begun = performance.now();
    await this.ask().catch(() => undefined);
    this.asking = false;
    if (this.again) {
      this.again = false;
      this.want();
    }
  }

  stop(): void {
    clearTimeout(this.timer);
    this.ask = async () => undefined;
  }
}

// Asks at once and whenever one of `marks` is another; a slow service gets no second question before its answer.
export function usePaced(ask: () => Promise<unknown>, marks: unknown[], gap = 500): void {
  const [paced] = useState(() => new Paced(gap));
  paced.ask = ask;
  useEffect(() => paced.want(), marks);
  useEffect(() => () => paced.stop(), []);
}
