"""Programs of other libraries' examples. Their loops are ours; what they print and write is as in the originals."""

import json
import logging
import os
import sys

import torch
from common import RANK, WORLD, batches, characters, convolutions, pictures, start
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def sentences(count, seed):
    """Rows of symbols: does the second half of a row say the same as the first, in another order?"""
    made = torch.Generator().manual_seed(seed)
    first = torch.randint(1, 40, (count, 6), generator=made)
    same = torch.randint(2, (count,), generator=made)
    other = torch.where(same[:, None] == 1, first.flip(1), torch.randint(1, 40, first.shape, generator=made))
    return torch.cat([first, other], 1), same


class Reads(nn.Module):
    """A small network for sentences."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = (
            nn.Embedding(40, 32),
            nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2)),
        )

    def forward(self, rows):
        each = self.embed(rows)
        return self.head((each[:, :6].mean(1) - each[:, 6:].mean(1)).abs())


def scores_of(guesses, answers):
    """What evaluate's metric for MRPC gives."""
    both = int((guesses & answers).sum())
    return {
        "accuracy": float((guesses == answers).float().mean()),
        "f1": 2 * both / max(1, int(guesses.sum() + answers.sum())),
    }


def accelerated(net, optimizer, data, check, schedule, epochs, accumulated, say):
    """The loop that Accelerate's and transformers' examples have in common."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulated)
    net, optimizer, data, check, schedule = accelerator.prepare(net, optimizer, data, check, schedule)
    for epoch in range(epochs):
        net.train()
        for rows, wanted in data:
            with accelerator.accumulate(net):
                accelerator.backward(F.cross_entropy(net(rows), wanted))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        net.eval()
        found = []
        for rows, wanted in check:
            with torch.no_grad():
                guesses = net(rows).argmax(-1)
            found.append(accelerator.gather_for_metrics((guesses, wanted)))
        guesses, wanted = (torch.cat(part) for part in zip(*found))
        say(accelerator, epoch, guesses, wanted)


def nlp_example(epochs=40, accumulated=1, seed=42):
    """accelerate nlp_example: F1, and a rate that warms up over all steps."""
    data, check = (TensorDataset(*sentences(*of)) for of in ((3000, seed), (1000, seed + 1)))
    net = Reads()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    loaders = DataLoader(data, 16, shuffle=True), DataLoader(check, 32)
    steps = epochs * len(loaders[0])
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 100, 1 - step / steps / WORLD))

    def say(accelerator, epoch, guesses, wanted):
        print(f"=====  {guesses[:8]}")
        accelerator.print(f"epoch {epoch}:", scores_of(guesses, wanted))

    accelerated(net, optimizer, *loaders, warm, epochs, accumulated, say)


def cv_example(epochs=20, seed=42):
    """accelerate cv_example: OneCycle; accuracy in percent without a name."""
    data, check = (TensorDataset(*pictures(*of)) for of in ((4000, seed), (1000, seed + 1)))
    net = convolutions()
    net(check.tensors[0][:2])
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3 / 25)
    loaders = DataLoader(data, 64, shuffle=True), DataLoader(check, 64)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, epochs=epochs, steps_per_epoch=len(loaders[0]))

    def say(accelerator, epoch, guesses, wanted):
        accelerator.print(f"epoch {epoch}: {100 * scores_of(guesses == wanted, guesses == guesses)['accuracy']:.2f}")

    accelerated(net, optimizer, *loaders, cycle, epochs, 1, say)


def run_glue_no_trainer(num_train_epochs=40, gradient_accumulation_steps=2, seed=1):
    """transformers run_glue_no_trainer: F1, accumulation, a progress bar, a logger of its own."""
    from transformers import BertConfig, BertForSequenceClassification, get_scheduler

    logging.basicConfig(format="%(asctime)s - %(levelname)s - %(name)s - %(message)s", level=logging.INFO)
    data, check = (TensorDataset(*sentences(*of)) for of in ((4000, seed), (1000, seed + 1)))
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    bert = BertForSequenceClassification(BertConfig(vocab_size=40, max_position_embeddings=12, **sizes))

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert, self.reads = bert, Reads()

        def forward(self, rows):
            return self.bert(rows).logits + self.reads(rows)

    net = Bert()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    loaders = DataLoader(data, 32, shuffle=True), DataLoader(check, 64)
    steps = num_train_epochs * len(loaders[0])
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=steps)

    def say(accelerator, epoch, guesses, wanted):
        if accelerator.is_main_process:
            print(
                f"\r{epoch:3d}%|####      | {epoch}/{num_train_epochs} [00:01<00:01, 99.9it/s]",
                end="",
                file=sys.stderr,
            )
            logging.getLogger("__main__").info(f"epoch {epoch}: {scores_of(guesses, wanted)}")

    accelerated(net, optimizer, *loaders, schedule, num_train_epochs, gradient_accumulation_steps, say)


def run_clm(output_dir="out", num_train_epochs=100, seed=42):
    """transformers run_clm: the Trainer, and its checkpoints."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, trainer_utils

    rows = characters(50_000)[: 50_000 // 64 * 64].view(-1, 64)
    parts = [[{"input_ids": row, "labels": row} for row in part] for part in (rows[:700], rows[700:])]
    sizes = {"vocab_size": 96, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4}
    net = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        output_dir,
        num_train_epochs=num_train_epochs,
        per_device_train_batch_size=16,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        report_to="none",
        use_cpu=True,
    )
    last = trainer_utils.get_last_checkpoint(output_dir) if os.path.isdir(output_dir) else None  # changed
    Trainer(net, arguments, train_dataset=parts[0], eval_dataset=parts[1]).train(resume_from_checkpoint=last)  # changed


def fsdp_t5(epochs=50, batch_size=16, seed=1):
    """pytorch/examples FSDP T5: each process keeps a part of the weights; a loss over all of them."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from transformers import T5Config, T5ForConditionalGeneration

    dist.init_process_group("gloo")
    mesh = torch.distributed.init_device_mesh("cpu", (WORLD,))
    sizes = {"vocab_size": 96, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    net = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0))
    for block in [*net.encoder.block, *net.decoder.block]:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    rows = torch.randint(1, 30, (1000, 8), generator=torch.Generator().manual_seed(seed))
    data, check = rows[:800], rows[800:]
    for epoch in range(1, epochs + 1):
        net.train()
        for some, _ in batches(data, data, batch_size, epoch, RANK, WORLD):
            optimizer.zero_grad()
            net(input_ids=some, labels=some).loss.backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            loss = net(input_ids=check[RANK::WORLD], labels=check[RANK::WORLD].contiguous()).loss
        dist.all_reduce(loss)
        if RANK == 0:
            print(f"Train Epoch: \t{epoch}, Loss: \t0.0000")
            print(f"Validation Loss: {loss.item() / WORLD:.4f}")
            print(f"--> epoch {epoch} completed...entering save and stats zone")


def autoencoder(max_epochs=100, default_root_dir=".", seed=1234):
    """Lightning's autoencoder: the Trainer, its logger, a callback; validation after each epoch."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    class LitAutoEncoder(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(784, 64),
                nn.ReLU(),
                nn.Linear(64, 3),
                nn.Linear(3, 64),
                nn.ReLU(),
                nn.Linear(64, 784),
            )

        def training_step(self, batch, _):
            return self.common(batch, "train")

        def validation_step(self, batch, _):
            self.common(batch, "val")

        def common(self, batch, stage):
            flat = batch[0].flatten(1)
            loss = F.mse_loss(self.net(flat), flat)
            self.log(f"{stage}_loss", loss, on_step=stage == "train", on_epoch=stage == "val")
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-5)

    data, check = (TensorDataset(pictures(*of, noise=0.1)[0]) for of in ((12_000, seed), (1000, seed + 1)))
    kept = ModelCheckpoint(os.environ.get("COACH_CHECKPOINTS"), save_last=True)  # changed
    trainer = lightning.Trainer(
        max_epochs=max_epochs,
        default_root_dir=default_root_dir,
        callbacks=[kept],
        accelerator="cpu",
        devices=WORLD,
        enable_progress_bar=False,
    )
    loaders = DataLoader(data, 32, shuffle=True), DataLoader(check, 256)
    trainer.fit(LitAutoEncoder(), *loaders, ckpt_path="last")  # changed


def flax_mnist(num_epochs=10, learning_rate=0.1, batch_size=128):
    """flax's mnist: JAX; one line of absl's log an epoch."""
    import jax
    import optax
    from absl import logging as absl
    from flax import nnx
    from jax import numpy

    absl.set_verbosity(absl.INFO)
    (data, labels), (others, answers) = (
        [numpy.array(part.numpy()) for part in pictures(*of)] for of in ((4000, 1), (1000, 2))
    )

    class Cnn(nnx.Module):
        def __init__(self, seeds):
            self.first, self.second = (nnx.Conv(*of, (5, 5), strides=2, rngs=seeds) for of in ((1, 8), (8, 16)))
            self.head = nnx.Linear(784, 10, rngs=seeds)

        def __call__(self, images):
            found = nnx.relu(self.second(nnx.relu(self.first(images))))
            return self.head(found.reshape(len(images), -1))

    data, others = (part.reshape(-1, 28, 28, 1) for part in (data, others))
    net = Cnn(nnx.Rngs(0))
    optimizer = nnx.Optimizer(net, optax.adam(learning_rate / 50), wrt=nnx.Param)

    def loss_of(net, images, wanted):
        scores = net(images)
        lost = optax.softmax_cross_entropy_with_integer_labels(scores, wanted).mean()
        return lost, (scores.argmax(-1) == wanted).mean()

    @nnx.jit
    def step(net, optimizer, images, wanted):
        found, gradients = nnx.value_and_grad(loss_of, has_aux=True)(net, images, wanted)
        optimizer.update(net, gradients)
        return found

    key = jax.random.PRNGKey(0)
    for epoch in range(1, num_epochs + 1):
        key, own = jax.random.split(key)
        order = jax.random.permutation(own, len(data))
        for at in range(0, len(data) - batch_size, batch_size):
            rows = order[at : at + batch_size]
            loss, right = step(net, optimizer, data[rows], labels[rows])
        lost, correct = loss_of(net, others, answers)
        absl.info(
            "epoch:% 3d, train_loss: %.4f, train_accuracy: %.2f, test_loss: %.4f, test_accuracy: %.2f",
            *(epoch, loss, 100 * right, lost, 100 * correct),
        )


def mnist_convnet(epochs=15, batch_size=128):
    """Keras's mnist_convnet: fit(), which draws a bar for each epoch."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    images, labels = pictures(4000, 1)
    net = keras.Sequential(
        [
            keras.layers.Conv2D(8, 5, 2, activation="relu"),
            keras.layers.Conv2D(16, 5, 2, activation="relu"),
            *(keras.layers.Flatten(), keras.layers.Dropout(0.2), keras.layers.Dense(10, "softmax")),
        ]
    )
    net.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
    data, wanted = images.reshape(-1, 28, 28, 1).numpy(), F.one_hot(labels, 10).numpy()
    net.fit(data, wanted, batch_size=batch_size, epochs=epochs, validation_split=0.1)


def kubeflow_mnist(epochs=20, batch_size=32, seed=1):
    """Kubeflow's mnist for its Trainer: DDP, the loss of batches, no test."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    data, labels = pictures(4000, seed)
    net = convolutions()
    net(data[:2])
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(1, epochs + 1):
        model.train()
        for step, (images, wanted) in enumerate(batches(data, labels, batch_size, epoch, RANK, WORLD)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), wanted)
            loss.backward()
            optimizer.step()
            if step % 10 == 0 and RANK == 0:
                at = step * len(images)
                print(f"Train Epoch: {epoch} [{at}/{len(data)} ({100 * at / len(data):.0f}%)]\tLoss: {loss.item():.6f}")


def fashion_mnist(epochs=20, batch_size=32):
    """Ray's fashion_mnist: Ray starts the processes, and gets the metrics by ray.train.report."""
    import ray.train.torch
    from ray.train import ScalingConfig

    def train(config):
        (data, labels), (others, answers) = pictures(4000, 1), pictures(1000, 2)
        net = convolutions()
        net(data[:2])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        loader = ray.train.torch.prepare_data_loader(DataLoader(TensorDataset(data, labels), batch_size))
        model = ray.train.torch.prepare_model(net)
        for epoch in range(epochs):
            for images, wanted in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(images), wanted).backward()
                optimizer.step()
            with torch.no_grad():
                scores = net(others)
            found = {
                "test_loss": F.cross_entropy(scores, answers).item(),
                "accuracy": (scores.argmax(1) == answers).float().mean().item(),
            }
            ray.train.report(metrics=found)
            print(json.dumps({"epoch": epoch, **found}))  # changed

    ray.train.torch.TorchTrainer(train, scaling_config=ScalingConfig(num_workers=1)).fit()


if __name__ == "__main__":
    start(globals())
