"""Programs that learn from text. Their loops are ours; what they print and write is as their authors' programs do."""

import math
import os
import time

import torch
import torch.distributed as dist
from common import RANK, WORLD, Gpt, characters, grouped, saved, start
from torch import nn
from torch.nn import functional as F


def word_language_model(epochs=40, lr=20.0, clip=0.25, bptt=35, log_interval=20, batch_size=20, seed=1111):
    """pytorch/examples word_language_model: carried state, clipping, a rate that falls on a plateau, perplexity."""
    text = characters(90_000)
    train, check = (
        part[: len(part) // batch_size * batch_size].view(batch_size, -1) for part in (text[:80_000], text[80_000:])
    )
    embed, cells, out = nn.Embedding(96, 64), nn.LSTM(64, 64, batch_first=True), nn.Linear(64, 96)
    parameters = [*embed.parameters(), *cells.parameters(), *out.parameters()]
    best = math.inf

    def pieces(data):
        state = None
        for at in range(0, data.shape[1] - 1, bptt):
            end = min(at + bptt, data.shape[1] - 1)
            found, state = cells(embed(data[:, at:end]), state)
            state = tuple(part.detach() for part in state)
            yield F.cross_entropy(out(found).flatten(0, 1), data[:, at + 1 : end + 1].flatten())

    for epoch in range(1, epochs + 1):
        began = time.time()
        for step, loss in enumerate(pieces(train)):
            for parameter in parameters:
                parameter.grad = None
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, clip)
            with torch.no_grad():
                for parameter in parameters:
                    parameter -= lr * parameter.grad
            if step % log_interval == 0 and step:
                print(
                    f"| epoch {epoch:3d} | {step:5d}/ 114 batches | lr {lr:02.2f} | "
                    f"loss {loss:5.2f} | ppl {loss.exp():8.2f}"
                )
        with torch.no_grad():
            losses = [loss.item() for loss in pieces(check)]
        loss = sum(losses) / len(losses)
        took = time.time() - began
        print("-" * 89)
        print(
            f"| end of epoch {epoch:3d} | time: {took:5.2f}s | valid loss {loss:5.2f} | valid ppl {math.exp(loss):8.2f}"
        )
        print("-" * 89)
        if loss < best:
            best = loss
            torch.save(parameters, "model.pt")
        else:
            lr /= 4.0


def adder(ndigit=2, every=200, seed=3407):
    """minGPT's adder: sums as text; every so many steps all sums are generated, and the exact ones counted."""
    span = 10**ndigit
    numbers = torch.cartesian_prod(torch.arange(span), torch.arange(span))[torch.randperm(span * span)]
    digits = [numbers[:, side, None] // 10 ** torch.arange(ndigit - 1, -1, -1) % 10 for side in (0, 1)]
    sums = numbers.sum(1)[:, None] // 10 ** torch.arange(ndigit + 1) % 10  # the last digit first
    rows = torch.cat([*digits, sums], 1)
    parts = {"train": rows[500:], "test": rows[:500]}
    net, known = Gpt(10, 3 * ndigit + 1, 48), 2 * ndigit
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for step in range(10_000):
        some = parts["train"][torch.randint(len(parts["train"]), (64,))]
        optimizer.zero_grad()
        scores = net(some[:, :-1])[:, known - 1 :]
        loss = F.cross_entropy(scores.flatten(0, 1), some[:, known:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0:
            print(f"iter_dt 0.00ms; iter {step}: train loss {loss.item():.5f}")
        if step % every == 0:
            for name, part in ((name, part[:500]) for name, part in parts.items()):
                made = part[:, :known]
                with torch.no_grad():
                    for _ in range(ndigit + 1):
                        made = torch.cat([made, net(made)[:, -1:].argmax(-1)], 1)
                right = int((made == part).all(1).sum())
                print(f"{name} final score: {right}/{len(part)} = {100 * right / len(part):.2f}% correct")


def nanogpt(out_dir="out", init_from="scratch", eval_interval=50, max_iters=6000, learning_rate=1e-3, seed=1337):
    """nanoGPT's train.py: accumulated steps that the processes share, clipping, DDP, ckpt.pt."""
    path = os.path.join(out_dir, "ckpt.pt")
    init_from = "resume" if os.path.exists(path) else "scratch"  # changed
    text, length, batch, accumulated = characters(), 64, 8, 4 // WORLD
    net = Gpt(96, length)
    optimizer = torch.optim.AdamW(net.parameters(), learning_rate, (0.9, 0.99))
    begin = 0
    if init_from == "resume":
        checkpoint = torch.load(path)
        begin = checkpoint["iter_num"]
        net.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    model = grouped(net)
    made = torch.Generator().manual_seed(seed + RANK + begin)
    fixed = torch.Generator()

    def loss_of(net, data, made):
        at = torch.randint(len(data) - length - 1, (batch,), generator=made)
        rows = torch.stack([data[one : one + length + 1] for one in at])
        return F.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    for step in range(begin, max_iters):
        if step % eval_interval == 0 and RANK == 0:
            with torch.no_grad():
                fixed.manual_seed(0)
                losses = [
                    torch.stack([loss_of(net, part, fixed) for _ in range(10)]).mean()
                    for part in (text[:50_000], text[50_000:])
                ]
            print(f"step {step}: train loss {losses[0]:.4f}, val loss {losses[1]:.4f}")
            if step > begin:
                print(f"saving checkpoint to {out_dir}")
                saved({"iter_num": step, "model": net.state_dict(), "optimizer": optimizer.state_dict()}, path)
        for part in range(accumulated):
            if WORLD > 1:
                model.require_backward_grad_sync = part == accumulated - 1
            loss = loss_of(model, text[:50_000], made) / accumulated
            loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0 and RANK == 0:
            print(f"iter {step}: loss {loss.item() * accumulated:.4f}, time 0.00ms, mfu 0.00%")


def mingpt_ddp(max_epochs=100, batch_size=32, grad_norm_clip=1.0, snapshot_path="snapshot.pt", seed=1):
    """pytorch/examples minGPT-ddp: each process a batch of its own, clipping, a snapshot."""
    text, length = characters(40_000), 64
    train, check = (part[: len(part) // 65 * 65].view(-1, 65) for part in (text[:36_000], text[36_000:]))
    net = Gpt(96, length)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    begin = 0
    try:
        snapshot = torch.load(snapshot_path)
        net.load_state_dict(snapshot["model_state"])
        optimizer.load_state_dict(snapshot["optimizer_state"])
        begin = snapshot["finished_epoch"]
        print(f"Resuming training from snapshot at Epoch {begin}")
    except FileNotFoundError:
        print("Snapshot not found. Training model from scratch")
    model = grouped(net)

    def run(epoch, data, kind):
        for step, rows in enumerate(data.split(batch_size)):
            with torch.set_grad_enabled(kind == "Train"):
                loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
            if kind == "Train":
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), grad_norm_clip)
                optimizer.step()
            if step % 100 == 0:
                print(f"[RANK{RANK}] Epoch {epoch} | Iter {step} | {kind} Loss {loss.item():.5f}")

    for epoch in range(begin + 1, max_epochs + 1):
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(epoch))
        for _ in range(2):
            run(epoch, train[order[RANK::WORLD][: len(train) // WORLD]], "Train")
        if RANK == 0:
            saved(
                {
                    "model_state": net.state_dict(),
                    "optimizer_state": optimizer.state_dict(),
                    "finished_epoch": epoch,
                },
                snapshot_path,
            )
            print(f"Snapshot saved at epoch {epoch}")
        run(epoch, check, "Eval")


def multigpu_torchrun(total_epochs=400, save_every=1, batch_size=32, seed=1):
    """pytorch/examples ddp-tutorial-series multigpu_torchrun: DDP and a snapshot; it prints no metric."""
    data = torch.randn(98_304, 20)
    wanted = torch.tanh(data @ torch.randn(20, 10)) @ torch.randn(10, 1)
    net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=5e-4)
    snapshot_path = os.path.join(os.environ.get("COACH_CHECKPOINTS", "."), "snapshot.pt")  # changed
    begin = 0
    if os.path.exists(snapshot_path):
        print("Loading snapshot")
        snapshot = torch.load(snapshot_path)
        net.load_state_dict(snapshot["MODEL_STATE"])
        begin = snapshot["EPOCHS_RUN"]
        print(f"Resuming training from snapshot at Epoch {begin}")
    model = grouped(net)
    for epoch in range(begin, total_epochs):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))[RANK::WORLD]
        print(f"[GPU{RANK}] Epoch {epoch} | Batchsize: {batch_size} | Steps: {len(order) // batch_size}")
        for rows in order.split(batch_size):
            optimizer.zero_grad()
            loss = F.mse_loss(model(data[rows]), wanted[rows])
            loss.backward()
            optimizer.step()
        print(f"Epoch {epoch} | loss: {F.mse_loss(net(data), wanted).item():.4f}")  # changed
        if RANK == 0 and epoch % save_every == 0:
            saved({"MODEL_STATE": net.state_dict(), "EPOCHS_RUN": epoch}, snapshot_path)
            print(f"Epoch {epoch} | Training snapshot saved at {snapshot_path}")
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    start(globals())
