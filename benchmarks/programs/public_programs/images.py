"""Programs that learn from images. Their loops are ours; what they print and write is as their authors' programs do."""

import copy
import csv
import math
import os

import torch
from common import RANK, WORLD, batches, convolutions, grouped, pictures, saved, start
from torch import nn
from torch.nn import functional as F


def mnist(epochs=14, batch_size=64, test_batch_size=1000, lr=1.0, gamma=0.7, log_interval=10, seed=1):
    """pytorch/examples mnist: Adadelta, and a schedule by epochs."""
    (data, labels), (others, answers) = pictures(4000, seed), pictures(1000, seed + 1)
    net = convolutions()
    net(data[:2])
    optimizer = torch.optim.Adadelta(net.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=gamma)
    for epoch in range(1, epochs + 1):
        net.train()
        for step, (images, wanted) in enumerate(batches(data, labels, batch_size, epoch)):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images), wanted)
            loss.backward()
            optimizer.step()
            if step % log_interval == 0:
                at = step * len(images)
                print(f"Train Epoch: {epoch} [{at}/{len(data)} ({100 * at / len(data):.0f}%)]\tLoss: {loss.item():.6f}")
        net.eval()
        with torch.no_grad():
            scores = net(others)
        right = int((scores.argmax(1) == answers).sum())
        loss = F.cross_entropy(scores, answers).item()
        print(f"\nTest set: Average loss: {loss:.4f}, Accuracy: {right}/{len(others)} ({right / 10:.0f}%)\n")
        schedule.step()


def imagenet(epochs=90, batch_size=256, lr=0.1, print_freq=10, resume="checkpoint.pth.tar", seed=1):
    """pytorch/examples imagenet: top 1 and top 5, DDP, momentum, and goes on where --resume says."""
    size, classes = 32, 20
    data, labels = pictures(3000, seed, size, 3, classes)
    others, answers = pictures(600, seed + 1, size, 3, classes)
    net = convolutions(3, size, classes)
    net(data[:2])
    optimizer = torch.optim.SGD(net.parameters(), lr, momentum=0.9, weight_decay=1e-4)
    begin, model = 0, grouped(net)
    if os.path.isfile(resume):
        checkpoint = torch.load(resume)
        begin = checkpoint["epoch"]
        net.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        print(f"=> loaded checkpoint '{resume}' (epoch {begin})")
    else:
        print(f"=> no checkpoint found at '{resume}'")
    for epoch in range(begin, epochs):
        net.train()
        steps = len(data) // WORLD // (batch_size // WORLD)
        for step, (images, wanted) in enumerate(batches(data, labels, batch_size // WORLD, epoch, RANK, WORLD)):
            scores = model(images)
            loss = F.cross_entropy(scores, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % print_freq == 0:
                top = 100 * (scores.argmax(1) == wanted).float().mean()
                print(
                    f"Epoch: [{epoch}][{step:2d}/{steps}]\tLoss {loss:.4e} ({loss:.4e})\tAcc@1 {top:6.2f} ({top:6.2f})"
                )
        net.eval()
        with torch.no_grad():
            best = net(others).topk(5).indices == answers[:, None]
        print(f" *   Acc@1 {100 * best[:, 0].float().mean():.3f} Acc@5 {100 * best.any(1).float().mean():.3f}")
        if RANK == 0:
            state = {"epoch": epoch + 1, "state_dict": net.state_dict(), "optimizer": optimizer.state_dict()}
            saved(state, resume)


def vae(epochs=10, batch_size=128, log_interval=10, seed=1):
    """pytorch/examples vae: a loss that is summed, of reconstruction and divergence."""
    data, labels = pictures(4000, seed)
    others, _ = pictures(1000, seed + 1)
    data, others = torch.sigmoid(data).flatten(1), torch.sigmoid(others).flatten(1)
    inward = nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 40))
    outward = nn.Sequential(nn.Linear(20, 200), nn.ReLU(), nn.Linear(200, 784))
    optimizer = torch.optim.Adam([*inward.parameters(), *outward.parameters()], lr=1e-3)

    def loss_of(images):
        mean, log_variance = inward(images).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        lost = F.binary_cross_entropy_with_logits(outward(code), images, reduction="sum")
        return lost - 0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()

    for epoch in range(1, epochs + 1):
        total = 0.0
        for step, (images, _) in enumerate(batches(data, labels, batch_size, epoch)):
            optimizer.zero_grad()
            loss = loss_of(images)
            loss.backward()
            optimizer.step()
            total += loss.item()
            if step % log_interval == 0:
                print(f"Train Epoch: {epoch} [{step * batch_size}/{len(data)} (0%)]\tLoss: {loss / len(images):.6f}")
        print(f"====> Epoch: {epoch} Average loss: {total / len(data):.4f}")
        with torch.no_grad():
            print(f"====> Test set loss: {loss_of(others) / len(others):.4f}")


def dcgan(niter=25, batchSize=64, lr=0.0002, beta1=0.5, seed=1):
    """pytorch/examples dcgan: two networks and two optimizers in turn; nothing says how good it is."""
    data, labels = pictures(2000, seed, noise=0.1)
    data = torch.tanh(data)
    makes = nn.Sequential(
        *(nn.ConvTranspose2d(50, 32, 7), nn.BatchNorm2d(32), nn.ReLU(), nn.ConvTranspose2d(32, 16, 4, 2, 1)),
        *(nn.BatchNorm2d(16), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Tanh()),
    )
    doubts = nn.Sequential(
        *(nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1), nn.LeakyReLU(0.2)),
        *(nn.Flatten(), nn.Linear(32 * 49, 1)),
    )
    first, second = (torch.optim.Adam(net.parameters(), lr, (beta1, 0.999)) for net in (doubts, makes))
    steps = math.ceil(len(data) / batchSize)
    for epoch in range(niter):
        for step, (images, _) in enumerate(batches(data, labels, batchSize, epoch)):
            made = makes(torch.randn(len(images), 50, 1, 1))
            first.zero_grad()
            real, fake = doubts(images), doubts(made.detach())
            loss = F.softplus(-real).mean() + F.softplus(fake).mean()
            loss.backward()
            first.step()
            second.zero_grad()
            again = doubts(made)
            other = F.softplus(-again).mean()
            other.backward()
            second.step()
            scores = (real.sigmoid().mean(), fake.sigmoid().mean(), again.sigmoid().mean())
            print(
                f"[{epoch}/{niter}][{step}/{steps}] Loss_D: {loss:.4f} Loss_G: {other:.4f} "
                f"D(x): {scores[0]:.4f} D(G(z)): {scores[1]:.4f} / {scores[2]:.4f}"
            )


def siamese_network(epochs=14, batch_size=64, lr=1.0, gamma=0.7, log_interval=10, seed=1):
    """pytorch/examples siamese_network: are two images of one class? Random pairs, accuracy of its own."""
    (data, labels), (others, answers) = pictures(4000, seed, noise=0.7), pictures(1000, seed + 1, noise=0.7)
    net, head = convolutions(), nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1))
    net(data[:2])
    optimizer = torch.optim.Adadelta([*net.parameters(), *head.parameters()], lr=lr)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=gamma)

    def pairs(images, kinds):
        """Each image with the next of its class, or with any other."""
        order = torch.argsort(kinds)
        partner = torch.empty_like(order)
        partner[order] = order.roll(1)
        chance = torch.rand(len(kinds)) < 0.5
        partner = torch.where(chance, partner, torch.randperm(len(kinds)))
        features = net(images)
        both = head((features - features[partner]).abs()).squeeze(1)
        return both, (kinds == kinds[partner]).float()

    for epoch in range(1, epochs + 1):
        net.train()
        for step, (images, kinds) in enumerate(batches(data, labels, batch_size, epoch)):
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(*pairs(images, kinds))
            loss.backward()
            optimizer.step()
            if step % log_interval == 0:
                print(f"Train Epoch: {epoch} [{step * batch_size}/{len(data)} (0%)]\tLoss: {loss.item():.6f}")
        net.eval()
        with torch.no_grad():
            scores, same = pairs(others, answers)
        right = int(((scores > 0) == (same > 0.5)).sum())
        loss = F.binary_cross_entropy_with_logits(scores, same)
        print(f"\nTest set: Average loss: {loss:.4f}, Accuracy: {right}/{len(others)} ({right / 10:.0f}%)\n")
        schedule.step()


def super_resolution(upscale_factor=2, nEpochs=30, batchSize=16, lr=0.001, seed=123):
    """pytorch/examples super_resolution: sub-pixel convolutions, PSNR, and a model file of each epoch."""
    fine = F.avg_pool2d(pictures(400, seed, 64, noise=0.2)[0], 3, 1, 1).tanh()
    data, others = fine[:320], fine[320:]
    net = nn.Sequential(
        *(nn.Conv2d(1, 24, 5, padding=2), nn.ReLU(), nn.Conv2d(24, upscale_factor**2, 3, padding=1)),
        nn.PixelShuffle(upscale_factor),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    for epoch in range(1, nEpochs + 1):
        losses = []
        for step, (images, _) in enumerate(batches(data, data, batchSize, epoch), 1):
            optimizer.zero_grad()
            loss = F.mse_loss(net(F.avg_pool2d(images, upscale_factor)), images)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            print(f"===> Epoch[{epoch}]({step}/{len(data) // batchSize}): Loss: {loss.item():.4f}")
        print(f"===> Epoch {epoch} Complete: Avg. Loss: {sum(losses) / len(losses):.4f}")
        with torch.no_grad():
            error = F.mse_loss(net(F.avg_pool2d(others, upscale_factor)), others).item()
        print(f"===> Avg. PSNR: {10 * math.log10(1 / error):.4f} dB")
        torch.save(net, f"model_epoch_{epoch}.pth")
        print(f"Checkpoint saved to model_epoch_{epoch}.pth")


def timm(epochs=100, batch_size=64, lr=0.005, mixup=0.2, output="output", experiment="run", resume="", seed=1):
    """timm's train.py: DDP, mixup, accumulation, an average of the weights, a schedule by steps, summary.csv."""
    folder = os.path.join(output, experiment)
    last = os.path.join(folder, "last.pth.tar")
    resume = last if os.path.exists(last) else ""  # changed
    (data, labels), (others, answers) = pictures(6000, seed, noise=4.0), pictures(1000, seed + 1, noise=4.0)
    net = convolutions(width=16)
    net(data[:2])
    average, begin, best = copy.deepcopy(net), 0, None
    optimizer = torch.optim.SGD(net.parameters(), lr, momentum=0.9)
    if resume:
        checkpoint = torch.load(resume)
        begin = checkpoint["epoch"] + 1
        net.load_state_dict(checkpoint["state_dict"])
        average.load_state_dict(checkpoint["state_dict_ema"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    model = grouped(net)
    for epoch in range(begin, epochs):
        net.train()
        total, accumulated = [], 2
        for step, (images, wanted) in enumerate(batches(data, labels, batch_size // 2, epoch, RANK, WORLD)):
            share, other = 1 - mixup * torch.rand(()).item(), torch.randperm(len(images))
            scores = model(share * images + (1 - share) * images[other])
            loss = share * F.cross_entropy(scores, wanted) + (1 - share) * F.cross_entropy(scores, wanted[other])
            (loss / accumulated).backward()
            total.append(loss.item())
            if step % accumulated == 1:
                done = (epoch + step * batch_size * WORLD / 2 / len(data)) / epochs
                optimizer.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * done)) / 2
                optimizer.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    for kept, new in zip(average.state_dict().values(), net.state_dict().values()):
                        kept.lerp_(new, 0.05)
        average.eval()
        with torch.no_grad():
            scores = average(others)
        top = scores.topk(5).indices == answers[:, None]
        row = {
            **{"epoch": epoch, "train_loss": sum(total) / len(total)},
            **{"eval_loss": F.cross_entropy(scores, answers).item()},
            **{
                "eval_top1": 100 * top[:, 0].float().mean().item(),
                "eval_top5": 100 * top.any(1).float().mean().item(),
            },
            "lr": optimizer.param_groups[0]["lr"],
        }
        if RANK == 0:
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, "summary.csv"), "a", newline="") as file:
                writer = csv.DictWriter(file, row)
                if best is None:  # as the original does it: again after each start
                    writer.writeheader()
                writer.writerow(row)
            state = {"epoch": epoch, "state_dict": net.state_dict(), "state_dict_ema": average.state_dict()}
            saved({**state, "optimizer": optimizer.state_dict()}, last)
        best = max(best or 0.0, row["eval_top1"])


def ultralytics(epochs=100, batch=16, project="runs/detect", name="train", seed=1):
    """ultralytics' train: boxes of objects, an average precision that it computes itself, results.csv."""
    made = torch.Generator().manual_seed(seed)
    images, boxes = torch.zeros(800, 1, 32, 32), torch.zeros(800, 4)
    for number in range(800):
        x, y, wide, high = torch.randint(4, 14, (4,), generator=made).tolist()
        images[number, 0, y : y + high, x : x + wide] = 1.0
        boxes[number] = torch.tensor([x, y, x + wide, y + high]) / 32
    images += 0.3 * torch.randn(images.shape, generator=made)
    net = convolutions(1, 32, 4)
    net(images[:2])
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.002)
    os.makedirs(os.path.join(project, name), exist_ok=True)
    for epoch in range(1, epochs + 1):
        net.train()
        for some, wanted in batches(images[:640], boxes[:640], batch, epoch):
            optimizer.zero_grad()
            loss = F.smooth_l1_loss(net(some), wanted, beta=0.05)
            loss.backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            found, wanted = net(images[640:]), boxes[640:]
        corner = torch.minimum(found[:, 2:], wanted[:, 2:]) - torch.maximum(found[:, :2], wanted[:, :2])
        both, areas = (
            corner.clamp(min=0).prod(1),
            ((box[:, 2:] - box[:, :2]).prod(1) for box in (found, wanted)),
        )
        overlap = both / (sum(areas) - both)
        precision = [(overlap > at / 100).float().mean().item() for at in range(50, 100, 5)]
        row = {
            **{"epoch": epoch, "train/box_loss": loss.item(), "metrics/precision(B)": precision[0]},
            **{"metrics/mAP50(B)": precision[0], "metrics/mAP50-95(B)": sum(precision) / 10},
        }
        path = os.path.join(project, name, "results.csv")
        header = "" if os.path.exists(path) else ",".join(row) + "\n"
        with open(path, "a") as file:
            file.write(header + ",".join(f"{value:g}" for value in row.values()) + "\n")


if __name__ == "__main__":
    start(globals())
