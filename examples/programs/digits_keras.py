"""Handwritten digits with Keras, which writes its metrics to training.csv."""

import json
from pathlib import Path

import keras
import numpy


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


train, test = digits(".data/mnist-digits")
net = keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(10, "softmax")])
net.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
written = keras.callbacks.CSVLogger("training.csv")
net.fit(*train, 64, 20, validation_data=test, callbacks=[written], verbose=2)
