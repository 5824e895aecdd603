"""Train small models and write their learning curves, to judge the convergence estimator by more than two models.

    python tests/research/curves/make_curves.py          (needs scikit-learn; about two minutes)

Every model is trained for 80 epochs by mini-batch SGD; after each epoch come the mean loss and the accuracy on a
test split, and the loss of the last mini-batch: the smooth and the noisy way in which training scripts report.
"""

import csv
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_classification, make_moons
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

EPOCHS = 80
FILE = Path(__file__).parents[3] / "coach" / "simulation" / "data" / "learning_curves.csv"


def data_sets(rng):
    def noisy(seed, classes, separation, flips):
        return make_classification(
            1500,
            40,
            n_informative=12,
            n_classes=classes,
            class_sep=separation,
            flip_y=flips,
            random_state=seed,
        )

    yield "digits", load_digits(return_X_y=True)
    yield "cancer", load_breast_cancer(return_X_y=True)
    yield "wine", load_wine(return_X_y=True)
    yield "moons", make_moons(1000, noise=0.25, random_state=1)
    yield "blobs4", noisy(2, 4, 1.0, 0.05)
    yield "blobs8", noisy(3, 8, 1.5, 0.2)


def models(rng):
    for rate in (0.003, 0.03):
        yield (
            f"linear-{rate}",
            lambda r=rate: SGDClassifier("log_loss", alpha=1e-4, learning_rate="constant", eta0=r, random_state=7),
        )
    for layers, rate, momentum in (
        ((16,), 0.01, 0.0),
        ((64,), 0.03, 0.9),
        ((64, 32), 0.005, 0.9),
        ((128,), 0.1, 0.0),
    ):
        name = f"mlp{'x'.join(map(str, layers))}-{rate}-{momentum}"
        yield (
            name,
            lambda n=layers, r=rate, m=momentum: MLPClassifier(
                n,
                solver="sgd",
                learning_rate_init=r,
                momentum=m,
                nesterovs_momentum=m > 0,
                batch_size=32,
                random_state=7,
            ),
        )


def train(make, x, y, rng):
    x, tx, y, ty = train_test_split(x, y, test_size=0.3, random_state=5, stratify=y)
    scale = StandardScaler().fit(x)
    x, tx = scale.transform(x), scale.transform(tx)
    model, classes = make(), np.unique(y)
    for _ in range(EPOCHS):
        order = rng.permutation(len(x))
        batches = np.array_split(order, max(1, len(x) // 32))
        for batch in batches:
            model.partial_fit(x[batch], y[batch], classes=classes)
        last = log_loss(y[batch], model.predict_proba(x[batch]), labels=classes)
        yield log_loss(ty, model.predict_proba(tx), labels=classes), model.score(tx, ty), last


def main():
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(11)
    with FILE.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["data", "model", "metric", "values"])
        for data, (x, y) in data_sets(rng):
            for name, make in models(rng):
                rows = np.array(list(train(make, x, y, rng)))
                for metric, values in zip(("test-loss", "test-accuracy", "batch-loss"), rows.T, strict=True):
                    out.writerow([data, name, metric, ";".join(f"{v:.5g}" for v in values)])
                print(data, name, np.round(rows[[0, 9, 39, -1]], 3).tolist())


if __name__ == "__main__":
    main()
