"""A trained network in MXNet's own formats, for `coach model`; for those who load it without Coach.

    python -m training.mxnet.export < fields.json

Reads the fields of a worker's start message that describe the training, `weights_in` (the checkpoint's URI) and `file`
(NAME.params). Writes NAME.params, which `net.load_parameters` reads; and of a HybridBlock NAME-symbol.json with
NAME-0000.params, which `SymbolBlock.imports` reads without the model file. The output is one JSON object: `files`, by
name, and `error` where one is wrong.
"""

import json
import sys
from pathlib import Path

from mxnet import gluon, nd

from training import backend, checkpoint
from training.group_member import as_training_error
from training.model.cache import Cache
from training.request import StartRequest
from training.worker import make_learner, own_data


def export(fields: dict) -> list[str]:
    """Write the files; their names. Raises TrainingError, and what the user's code raises."""
    file = Path(fields.pop("file"))
    request = StartRequest.alone(**fields)
    framework, cache = backend.current(), Cache()
    model = cache.model(request.model)
    dataset = cache.data(request.data) or own_data(request, model)
    learner = make_learner(request, model, dataset)
    learner.restore(checkpoint.load(request.weights_in, framework.read_checkpoint).arrays, None)
    net = learner.net
    net.save_parameters(str(file))
    written = [file.name]
    if isinstance(net, gluon.HybridBlock):
        try:
            samples, _ = dataset.train.rows(slice(0, 1))
            net(nd.array(samples)).wait_to_read()  # without a call there is no graph to write
            net.export(str(file.with_suffix("")))
            written += [f"{file.stem}-symbol.json", f"{file.stem}-0000.params"]
        except Exception as error:  # a forward() of its own has no graph
            sys.stderr.write(f"no symbol: {error}\n")
    return written


def main() -> int:
    """Read the fields and write the files; 1 where something is wrong."""
    fields = json.load(sys.stdin)
    output, sys.stdout = sys.stdout, sys.stderr  # what the model file prints
    try:
        found = {"files": export(fields)}
    except Exception as error:
        found = {"error": as_training_error(error).as_dict()}
    output.write(json.dumps(found) + "\n")
    return int("error" in found)


if __name__ == "__main__":
    sys.exit(main())
