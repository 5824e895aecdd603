"""The learning curve without Coach, without groups, without functions: one process, one batch after the other.

Run by the functions' Python: `python reference.py MODEL BATCHES DATA`, DATA in JSON; prints {position: test loss}, too.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "functions"))

BATCH, SEED = 64, 3
OPTIMIZERS = {
    "mxnet": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9},
    "pytorch": {"name": "SGD", "learning_rate": 0.02, "momentum": 0.9},
}


def main() -> None:
    """Train, and evaluate after every batch."""
    from training import backend
    from training.data.dataset import Stream
    from training.data.formats import load
    from training.model import model_file
    from training.worker import make_learner

    uri, batches, data = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    optimizer = OPTIMIZERS[os.environ[backend.VARIABLE]]
    model = model_file.run(model_file.read({"uri": uri}))
    model.PAUSE = 0.0
    dataset = load(data.get("uri", "sklearn:digits"), data["format"]).first(data.get("size"))
    request = SimpleNamespace(
        model={"uri": uri},
        optimizer=optimizer,
        seed=SEED,
        weights_in=None,
        net="net",
        batch_size=BATCH,
        gpu=False,
        autocast=None,
        clip=None,
        micro_batch=None,
        elastic=False,
        servers=(),
    )
    learner = make_learner(request, model, dataset)
    stream = Stream(len(dataset.train), SEED)
    curve = {}
    for batch in range(batches):
        learner.step([(dataset.train.rows(stream.rows(batch * BATCH, BATCH)), BATCH)], seed=0)
        learner.update(BATCH)
        measured = learner.evaluate([(dataset.test.rows(slice(0, len(dataset.test))), len(dataset.test))])
        curve[(batch + 1) * BATCH] = measured.loss / len(dataset.test)
    print(json.dumps(curve))


if __name__ == "__main__":
    main()
