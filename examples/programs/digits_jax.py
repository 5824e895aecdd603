"""Handwritten digits with JAX: alone, or one of several processes, which average their gradients."""

import json
import os
from pathlib import Path

import jax
import numpy
from jax import numpy as jnp
from jax.experimental import multihost_utils

rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
if world > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    jax.distributed.initialize(address, num_processes=world, process_id=rank)


def digits(folder):
    """Images and labels to train on, and to test with."""
    parts = ([], []), ([], [])
    for digit in range(10):
        pixels = json.loads((Path(folder) / f"{digit}.json").read_text())["data"]
        images = numpy.array(pixels, "float32").reshape(-1, 784)
        cut = len(images) * 4 // 5
        for (inputs, labels), some in zip(parts, (images[:cut], images[cut:])):
            inputs.append(some)
            labels.append(numpy.full(len(some), digit))
    return [(numpy.concatenate(inputs), numpy.concatenate(labels)) for inputs, labels in parts]


def loss_of(weights, images, labels):
    """Mean cross entropy of a network with one hidden layer."""
    hidden = jax.nn.relu(images @ weights["in"] + weights["bias"])
    chances = jax.nn.log_softmax(hidden @ weights["out"])
    return -jnp.take_along_axis(chances, labels[:, None], 1).mean()


@jax.jit
def moved(weights, gradients):
    return jax.tree.map(lambda one, by: one - 0.2 * by, weights, gradients)


(images, labels), test = digits(".data/mnist-digits")
first, second = jax.random.split(jax.random.PRNGKey(0))
weights = {
    "in": jax.random.normal(first, (784, 64)) * 0.05,
    "bias": jnp.zeros(64),
    "out": jax.random.normal(second, (64, 10)) * 0.1,
}
gradient = jax.jit(jax.grad(loss_of))
order = numpy.random.default_rng(0)
for epoch in range(20):
    rows = order.permutation(len(images))
    for at in range(0, len(rows) - 64, 64):
        own = rows[at : at + 64][rank::world]
        gradients = gradient(weights, images[own], labels[own])
        if world > 1:
            gathered = multihost_utils.process_allgather(gradients)
            gradients = jax.tree.map(lambda each: each.mean(0), gathered)
        weights = moved(weights, gradients)
    if rank == 0:
        print(f"epoch {epoch}: val_loss {loss_of(weights, *test):.4f}")
