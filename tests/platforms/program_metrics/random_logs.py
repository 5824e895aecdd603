"""Random logs around known curves: does what is read of them ever end a job that has not reached its target?

    python -m tests.platforms.program_metrics.random_logs 100000

Each log has one curve of an evaluation, and around it what programs print besides: a better curve of the training, the
best value so far, settings with the target in them, times, other processes' lines in the middle of one. A log whose
number may be read in two ways is of a form of its own, so that no log is right by luck.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from dataclasses import dataclass

from coach.core.spec.program import at_most_one
from coach.platforms.program_metrics.base import Wanted
from coach.platforms.program_metrics.collector import Lines
from coach.platforms.program_metrics.reader import Reader


@dataclass(frozen=True)
class Log:
    """`lines` of each epoch, the values of the evaluation as they are printed, and the target that is given."""

    metric: str
    target: float
    less: bool
    before: bytes
    epochs: list[bytes]
    printed: list[float]
    form: str

    def reached(self, value: float) -> bool:
        """Whether a value reaches the target; both in the same unit."""
        return value <= self.target if self.less else value >= self.target


def number(draw: random.Random, value: float, form: str) -> tuple[str, float]:
    """A value as it is printed, and the value that this is."""
    if form == "percent":
        text = f"{100 * value:.{draw.choice([1, 2])}f}"
        return f"{text}{draw.choice(['%', ' %'])}", float(text) / 100
    if form == "part":
        return f"{round(10000 * value)}/10000 ({100 * value:.0f}%)", round(10000 * value) / 10000
    if form == "in percent":
        text = f"{100 * value:.2f}"
        return text, float(text) / 100
    digits = 1 if value > 1000 else 4
    text = f"{value:.{digits}f}"
    shown = {
        "plain": text,
        "thousands": f"{value:,.{digits}f}",
        "underscores": f"{value:_.{digits}f}",
        "swiss": f"{value:,.{digits}f}".replace(",", "'"),
        "german": f"{value:,.{digits}f}".translate(str.maketrans(",.", ".,")),
        "tensor": f"tensor({text}, device='cuda:0')",
        "numpy": f"np.float64({text})",
        "science": f"{value:.5e}",
        "colour": f"\x1b[1;36m{text}\x1b[0m",
    }[form]
    return shown, float(f"{value:.5e}") if form == "science" else float(text)


def name(draw: random.Random, metric: str) -> str:
    """A metric's name as somebody writes it."""
    spaced = metric.replace("_", " ")
    return draw.choice([metric, metric, metric.upper(), spaced, spaced.title(), metric.replace("_", "/")])


def log(seed: int) -> Log:
    """The log of a seed."""
    draw = random.Random(seed)
    metric = draw.choice(
        ["loss", "val_loss", "eval_loss", "perplexity", "accuracy", "val_accuracy", "rmse", "top1", "f1"]
    )
    bounded = at_most_one(metric)
    scale = 1.0 if bounded else draw.choice([1.0, 1.0, 50.0, 30000.0])
    count = draw.randint(4, 20)
    end, speed = draw.uniform(0.05, 0.4), draw.uniform(0.1, 0.6)
    falls = [scale * (end + (1 - end) * (1 - speed) ** n * draw.uniform(0.95, 1.05)) for n in range(count)]
    values = [min(0.999, max(0.02, 1 - one * 0.95)) for one in falls] if bounded else falls
    trained = [min(0.9999, one + 0.3) for one in values] if bounded else [0.5 * one for one in values]
    best = values[-1] if draw.random() < 0.5 else draw.choice(values)
    margin = draw.choice([0.0, 0.0, 0.03 * scale])
    target = best + margin if bounded else best - margin
    target = float(f"{min(target, 0.99) if bounded else target:.4g}")
    in_percent = bounded and draw.random() < 0.3
    forms = ["plain", "plain", "tensor", "numpy", "science", "colour"]
    forms += ["percent", "part", "in percent"] if bounded else ["thousands", "underscores", "swiss", "german"]
    form = draw.choice(forms)
    if in_percent and form in ("plain", "tensor", "numpy", "science", "colour"):
        form = "in percent"  # nobody gives a target in per cent where fractions are printed
    style = draw.choice(["line", "keras", "logger", "dict", "json", "table", "bar", "sets", "two lines", "header"])
    if style == "json" or (style == "dict" and form not in ("plain", "numpy", "tensor")):
        form = "in percent" if in_percent else "plain"
    shown = name(draw, metric)
    words = metric.split("_")
    part = words[0] if words[0] in ("val", "eval") else draw.choice(["val", "test", "eval", "dev", "validation"])
    bare = words[-1]
    epochs, printed = [], []
    for n in range(count):
        text, value = number(draw, values[n], form)
        other, _ = number(draw, trained[n], form)
        printed.append(round(100 * value if in_percent else value, 12))
        own = _epoch(draw, style, n + draw.choice([1]), count, shown, part, bare, metric, text, other)
        seen, _ = number(draw, best, form)
        noise = draw.sample(
            [
                f"best {shown}: {seen}",
                f"Epoch {n}: {metric} did not improve from {seen}",
                f"time per epoch: {draw.uniform(1, 90):.1f}s",
                f"steps per epoch: {draw.randint(10, 900)}",
                f"lr: {draw.uniform(0, 0.01):.2e}, grad_norm: nan",
                f"saving runs/{metric}={seen}.ckpt",
                f"early stopping: patience {n}, target {metric} {target:g}",
                f"worker-{n} 10.0.0.{n} torch 2.{n}.0 2026-11-{n + 1:02d} 10:{n + 10}:05,123",
                f"ETA 0:0{n % 6}:00 {n}.5it/s",
                f"train {bare}: {other}",
                f"training {bare} {other}",
            ],
            draw.randint(0, 4),
        )
        if draw.random() < 0.1:
            at = draw.randrange(len(own[-1]))
            own[-1] = f"{own[-1][:at]}warning: slow\n{own[-1][at:]}"
        epochs.append("".join(f"{line}\n" for line in own + noise).encode())
    settings = [
        f"config: {metric}: {draw.choice(['infonce', 'nanodet', 'mse'])} lr: 0.1",
        f"target {metric}={target:g}",
        f"{{'{metric}': {target:g}, 'lr': 0.1}}",
        f"Namespace({metric}={target:g}, epochs={count})",
        f"--{metric}={target:g}",
        f"{metric}: {target:g}",
        f"{metric} < {target:g} or {metric} <= {target:g}",
    ]
    before = "".join(f"{line}\n" for line in draw.sample(settings, draw.randint(0, 2))).encode()
    given = 100 * target if in_percent else target
    return Log(metric, float(f"{given:.6g}"), not bounded, before, epochs, printed, f"{style}, {form}")


def _epoch(
    draw: random.Random,
    style: str,
    n: int,
    count: int,
    shown: str,
    part: str,
    bare: str,
    metric: str,
    text: str,
    other: str,
) -> list[str]:
    """The lines of an epoch in a style."""
    sign = draw.choice([": ", "=", " = ", " "])
    plain = not text.startswith(("tensor", "np."))
    if style == "keras":
        return [f"Epoch {n}/{count}", f"30/30 - 1s - train_{bare}: {other} - {metric}: {text} - 20ms/step"]
    if style == "logger":
        return [f"2026-11-29 10:00:{n:02d},123 | INFO | main:42 - epoch {n} {shown}{sign}{text}"]
    if style == "dict" and "%" not in text and "/" not in text and "'" not in text.replace("'cuda:0'", ""):
        return [f"{{'train_{bare}': {other}, '{metric}': {text}, 'grad_norm': nan, 'epoch': {n}.0}}"]
    if style == "json":
        return [json.dumps({"epoch": n, metric: float(text), "train": {bare: float(other)}})]
    if style == "table" and " " not in text and plain:
        return [f"epoch  train_{bare}  {metric}", f"{n}  {other}  {text}"]
    if style == "bar":
        return [f"Epoch {n}: 100%|████| 9/9 [00:01, 9.5it/s, train_{bare}={other}, {metric}={text}]"]
    if style == "sets" and metric == bare:
        sets = [f"train {bare}{sign}{other}", f"{part} {bare}{sign}{text}"]
        draw.shuffle(sets)
        return [f"epoch {n}: {', '.join(sets)}"]
    if style == "two lines" and metric == bare:
        return [f"Train Epoch: {n} [9/9 (100%)]\t{bare.title()}: {other}", f"{part} set: Average {bare}: {text}"]
    if style == "header" and metric == bare:
        return [f"epoch {n}", "Training:", f"  {bare}: {other}", f"{part.title()}:", f"  {bare}: {text}"]
    return [f"epoch {n}: {shown}{sign}{text}"]


def outcome(log: Log) -> str:
    """`false` where a job would end before its target, `found` or `missed` where it was reached, else `none`."""
    reader = Reader(Wanted(log.metric, bounded=at_most_one(log.metric), percent=log.target > 1))
    lines, best = Lines(), False
    for raw, value in [(log.before, None), *zip(log.epochs, log.printed, strict=True)]:
        best = best or (value is not None and log.reached(value))
        for line in lines.more(raw):
            for one in reader.line(line):
                if log.metric in one.values and not one.guessed and log.reached(one.values[log.metric]):
                    return "found" if best else "false"
    return "missed" if any(map(log.reached, log.printed[1:])) else "none"


def main() -> None:
    """Read so many logs and say what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    found, wrong = Counter[str](), list[int]()
    for seed in range(asked.seed, asked.seed + asked.count):
        came = outcome(log(seed))
        found[came] += 1
        if came == "false":
            wrong.append(seed)
    print(", ".join(f"{name} {count}" for name, count in sorted(found.items())), f"of {asked.count} logs")
    if wrong:
        raise SystemExit(f"false successes, by seed: {wrong[:20]}")


if __name__ == "__main__":
    main()
