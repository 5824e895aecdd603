"""Programs that learn from numbers, graphs or by acting. Their loops are ours; they print as their originals do."""

import math
import time
from itertools import count

import torch
from common import start
from torch import nn
from torch.nn import functional as F


def regression(degree=4, seed=1):
    """pytorch/examples regression: endless random data, until the loss is below 1e-3; then it says so."""
    weights, bias = 5 * torch.randn(degree, 1), 5 * torch.randn(1)
    net = nn.Linear(degree, 1)
    for step in count(1):
        x = torch.randn(32).unsqueeze(1)
        powers = torch.cat([x**power for power in range(1, degree + 1)], 1)
        net.zero_grad()
        loss = F.smooth_l1_loss(net(powers), powers @ weights + bias)
        loss.backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.01 * parameter.grad
        if step % 100 == 0:  # changed
            print(f"Loss: {loss.item():.6f} after {step} batches")  # changed
            time.sleep(0.2)  # the original's steps are as small; a minute of them would not be
        if loss < 1e-3:
            break
    print(f"Loss: {loss.item():.6f} after {step} batches")
    print(f"==> Learned function:\t{net.weight.view(-1).tolist()}")


def reinforce(gamma=0.99, log_interval=10, seed=543):
    """pytorch/examples reinforce: a pole on a cart, data from acting, a reward that rises."""
    net = nn.Sequential(nn.Linear(4, 128), nn.Dropout(0.6), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    running = 10.0
    for episode in count(1):
        state, chances, reward = (torch.rand(4) * 0.1 - 0.05).tolist(), [], 0
        for _ in range(500):
            choice = torch.distributions.Categorical(logits=net(torch.tensor(state)))
            action = choice.sample()
            chances.append(choice.log_prob(action))
            state, reward = pushed(state, 10.0 if action.item() else -10.0), reward + 1
            if abs(state[0]) > 2.4 or abs(state[2]) > 0.209:
                break
        running = 0.05 * reward + 0.95 * running
        returns, after = [], 0.0
        for _ in chances:
            after = 1.0 + gamma * after
            returns.insert(0, after)
        returns = torch.tensor(returns)
        returns = (returns - returns.mean()) / (returns.std() + 1e-8)
        optimizer.zero_grad()
        (-torch.stack(chances) * returns).sum().backward()
        optimizer.step()
        if episode % log_interval == 0:
            print(f"Episode {episode}\tLast reward: {reward:.2f}\tAverage reward: {running:.2f}")
        if running > 475:
            print(f"Solved! Running reward is now {running} and the last episode runs to {reward} time steps!")
            return


def pushed(state, force):
    """The cart and its pole 0.02 s later (Barto, Sutton and Anderson 1983)."""
    x, speed, angle, turn = state
    swing = (force + 0.05 * turn**2 * math.sin(angle)) / 1.1
    bend = (9.8 * math.sin(angle) - math.cos(angle) * swing) / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1))
    push = swing - 0.05 * bend * math.cos(angle) / 1.1
    return [x + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * turn, turn + 0.02 * bend]


def gat(epochs=300, lr=0.005, l2=5e-4, hidden_dim=64, num_heads=8, seed=13):
    """pytorch/examples gat: one graph, whose nodes are trained, validated and tested by masks."""
    nodes, classes = 800, 5
    kinds = torch.randint(classes, (nodes,))
    near = torch.rand(nodes, nodes) < torch.where(kinds[:, None] == kinds[None], 0.015, 0.004)
    near = near | near.T | torch.eye(nodes, dtype=torch.bool)
    features = F.one_hot(kinds, classes).float() @ torch.randn(classes, 200) * 0.35 + torch.randn(nodes, 200)
    inward, out = nn.Linear(200, hidden_dim), nn.Linear(hidden_dim, classes)
    looks = nn.Parameter(torch.randn(2, num_heads, hidden_dim // num_heads) * 0.1)
    optimizer = torch.optim.Adam([*inward.parameters(), *out.parameters(), looks], lr=lr, weight_decay=l2)

    def scores(drop):
        each = inward(F.dropout(features, 0.5, drop)).view(nodes, num_heads, -1)
        to, of = ((each * one).sum(-1) for one in looks)
        attention = F.leaky_relu(to[:, None] + of[None], 0.2).masked_fill(~near[..., None], -1e9).softmax(1)
        return out(F.elu(torch.einsum("ijh,jhf->ihf", attention, each).flatten(1)))

    train, check = slice(0, 200), slice(200, 500)
    for epoch in range(1, epochs + 1):
        began = time.time()
        optimizer.zero_grad()
        found = scores(True)
        loss = F.cross_entropy(found[train], kinds[train])
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            other = scores(False)
        right = (other.argmax(1) == kinds).float()
        lost = F.cross_entropy(other[check], kinds[check])
        print(
            f"Epoch: {epoch:04d} ({time.time() - began:.4f}s) loss_train: {loss:.4f} "
            f"acc_train: {right[train].mean():.4f} loss_val: {lost:.4f} acc_val: {right[check].mean():.4f}"
        )


def time_sequence_prediction(steps=15, seed=0):
    """pytorch/examples time_sequence_prediction: LBFGS, which runs the loss many times in each step."""
    waves = torch.sin((torch.arange(200) + torch.randint(-80, 80, (40, 1))).double() / 20)
    cell, out = nn.LSTMCell(1, 32).double(), nn.Linear(32, 1).double()
    optimizer = torch.optim.LBFGS([*cell.parameters(), *out.parameters()], lr=0.8, max_iter=5)

    def follow(inputs):
        state, found = None, []
        for value in inputs.split(1, 1):
            state = cell(value, state)
            found.append(out(state[0]))
        return torch.cat(found, 1)

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(follow(waves[3:, :-1]), waves[3:, 1:])
        print("loss:", loss.item())
        loss.backward()
        return loss

    for step in range(steps):
        print("STEP: ", step)
        optimizer.step(closure)
        with torch.no_grad():
            print("test loss:", F.mse_loss(follow(waves[:3, :-1]), waves[:3, 1:]).item())


if __name__ == "__main__":
    start(globals())
