"""PyTorch's own numbers, by a Python that has it: `python3 record_optimizers.py > optimizers.json`."""

import json

import torch

CASES = {
    "sgd": ("SGD", {"lr": 0.1}, {}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}, {}),
    "nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}, {}),
    "weight decay": ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, {}),
    "adam": ("Adam", {"lr": 0.01}, {}),
    "adam, others": ("Adam", {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}, {}),
    "adamw": ("AdamW", {"lr": 0.01, "weight_decay": 0.1}, {}),
    "clip by value": ("SGD", {"lr": 0.1}, {"clip_value": 0.5}),
    "clip by norm": ("Adam", {"lr": 0.01}, {"clip_norm": 1.0}),
}
torch.manual_seed(0)
first, gradients = torch.randn(8), [torch.randn(8) * 3 for _ in range(6)]
found = {}
for case, (kind, arguments, clip) in CASES.items():
    parameter = torch.nn.Parameter(first.clone())
    optimizer = getattr(torch.optim, kind)([parameter], **arguments)
    after = []
    for gradient in gradients:
        parameter.grad = gradient.clone()
        if "clip_value" in clip:
            torch.nn.utils.clip_grad_value_([parameter], clip["clip_value"])
        if "clip_norm" in clip:
            torch.nn.utils.clip_grad_norm_([parameter], clip["clip_norm"])
        optimizer.step()
        after.append(parameter.detach().tolist())
    found[case] = {"rule": {"name": kind.lower(), **arguments, **clip}, "weights": after}
print(
    json.dumps(
        {
            "torch": torch.__version__,
            "weights": first.tolist(),
            "gradients": [each.tolist() for each in gradients],
            "cases": found,
        }
    )
)
