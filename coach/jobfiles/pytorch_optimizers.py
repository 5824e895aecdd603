"""The optimizers and learning-rate schedules of PyTorch and the arguments that a job file can give them.

The names are those of PyTorch 1.13 to 2.x; what only 2.x has, an older one refuses when training begins.
`tests/functions/pytorch/test_optimizers.py` compares this table with torch's own signatures.
"""

from __future__ import annotations

FLAG, NUMBER, NUMBERS, PAIR, WORD = "true or false", "a number", "a list of numbers", "two numbers", "a word"

_DECAY = {"weight_decay": NUMBER}
_FLAGS = {"capturable": FLAG, "foreach": FLAG, "maximize": FLAG}
_ADAM = {**_DECAY, **_FLAGS, "betas": PAIR, "eps": NUMBER}

#: Arguments of each optimizer other than `lr`. `differentiable` makes no sense here.
OPTIMIZERS: dict[str, dict[str, str]] = {
    "ASGD": {**_DECAY, **_FLAGS, "lambd": NUMBER, "alpha": NUMBER, "t0": NUMBER},
    "Adadelta": {**_DECAY, **_FLAGS, "rho": NUMBER, "eps": NUMBER},
    "Adagrad": {
        **_DECAY,
        "foreach": FLAG,
        "maximize": FLAG,
        "fused": FLAG,
        "lr_decay": NUMBER,
        "initial_accumulator_value": NUMBER,
        "eps": NUMBER,
    },
    "Adam": {**_ADAM, "amsgrad": FLAG, "fused": FLAG, "decoupled_weight_decay": FLAG},
    "AdamW": {**_ADAM, "amsgrad": FLAG, "fused": FLAG},
    "Adamax": _ADAM,
    "NAdam": {**_ADAM, "momentum_decay": NUMBER, "decoupled_weight_decay": FLAG},
    "RAdam": {**_ADAM, "decoupled_weight_decay": FLAG},
    "RMSprop": {**_DECAY, **_FLAGS, "alpha": NUMBER, "eps": NUMBER, "momentum": NUMBER, "centered": FLAG},
    "Rprop": {**_FLAGS, "etas": PAIR, "step_sizes": PAIR},
    "SGD": {
        **_DECAY,
        "foreach": FLAG,
        "maximize": FLAG,
        "fused": FLAG,
        "momentum": NUMBER,
        "dampening": NUMBER,
        "nesterov": FLAG,
    },
}

#: Optimizers that PyTorch has, and why they do not train here.
UNFIT_OPTIMIZERS = {
    "LBFGS": "it computes the loss several times a step, by a closure that Coach does not have",
    "SparseAdam": "it takes sparse gradients only, and gradients are summed as dense ones",
}

#: Arguments of each schedule; those that `REQUIRED` names have no default.
SCHEDULES: dict[str, dict[str, str]] = {
    "ConstantLR": {"factor": NUMBER, "total_iters": NUMBER},
    "CosineAnnealingLR": {"T_max": NUMBER, "eta_min": NUMBER},
    "CosineAnnealingWarmRestarts": {"T_0": NUMBER, "T_mult": NUMBER, "eta_min": NUMBER},
    "CyclicLR": {
        "base_lr": NUMBER,
        "max_lr": NUMBER,
        "step_size_up": NUMBER,
        "step_size_down": NUMBER,
        "mode": WORD,
        "gamma": NUMBER,
        "scale_mode": WORD,
        "cycle_momentum": FLAG,
        "base_momentum": NUMBER,
        "max_momentum": NUMBER,
    },
    "ExponentialLR": {"gamma": NUMBER},
    "LinearLR": {"start_factor": NUMBER, "end_factor": NUMBER, "total_iters": NUMBER},
    "MultiStepLR": {"milestones": NUMBERS, "gamma": NUMBER},
    "OneCycleLR": {
        "max_lr": NUMBER,
        "total_steps": NUMBER,
        "epochs": NUMBER,
        "steps_per_epoch": NUMBER,
        "pct_start": NUMBER,
        "anneal_strategy": WORD,
        "cycle_momentum": FLAG,
        "base_momentum": NUMBER,
        "max_momentum": NUMBER,
        "div_factor": NUMBER,
        "final_div_factor": NUMBER,
        "three_phase": FLAG,
    },
    "PolynomialLR": {"total_iters": NUMBER, "power": NUMBER},
    "StepLR": {"step_size": NUMBER, "gamma": NUMBER},
}

REQUIRED: dict[str, tuple[str, ...]] = {
    "CosineAnnealingLR": ("T_max",),
    "CosineAnnealingWarmRestarts": ("T_0",),
    "CyclicLR": ("base_lr", "max_lr"),
    "ExponentialLR": ("gamma",),
    "MultiStepLR": ("milestones",),
    "OneCycleLR": ("max_lr",),
    "StepLR": ("step_size",),
}

_FUNCTION = "a job file cannot hold a function"
#: Schedules that PyTorch has, and why they do not work here.
UNFIT_SCHEDULES = {
    "ChainedScheduler": "a job file has one schedule",
    "LambdaLR": _FUNCTION,
    "MultiplicativeLR": _FUNCTION,
    "ReduceLROnPlateau": "it is stepped with a loss, not after every training step",
    "SequentialLR": "a job file has one schedule",
}
