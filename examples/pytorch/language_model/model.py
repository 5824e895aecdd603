"""A small transformer that learns the text of Python's own manual, character by character."""

from dataclasses import dataclass
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

LENGTH, WIDTH, CHARACTERS = 64, 64, 128
TEXT = "\n".join(topics[name] for name in sorted(topics))[:90_000]


class Blocks(Dataset):
    """Pieces of LENGTH characters, each with the characters that follow them."""

    def __init__(self, text):
        codes = torch.tensor([min(ord(character), CHARACTERS - 1) for character in text])
        self.count = (len(codes) - 1) // LENGTH
        self.inputs = codes[: self.count * LENGTH].reshape(self.count, LENGTH)
        self.labels = codes[1 : self.count * LENGTH + 1].reshape(self.count, LENGTH)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"input_ids": self.inputs[index], "labels": self.labels[index]}


@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, WIDTH)
        self.position = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CHARACTERS, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.head.weight = self.embedding.weight  # tied

    def forward(self, input_ids, labels):
        mask = torch.triu(torch.full((LENGTH, LENGTH), float("-inf")), 1)
        hidden = self.body(self.embedding(input_ids) + self.position, mask)
        logits = self.head(hidden)
        return Output(F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits)


def optimizer(net):
    return torch.optim.AdamW(net.parameters(), lr=0.01)


def schedule(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))


def data(split):
    return Blocks(TEXT[:80_000] if split == "train" else TEXT[80_000:])
