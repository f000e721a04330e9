"""Every module of torch.nn against CPU torch, forward and backward, on the inputs of torch's own module database."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_leaves, tree_map

CASES_PER_MODULE = 12


def draws_random_numbers(module: torch.nn.Module, training: bool) -> bool:
    """Whether two devices give different results."""
    for part in module.modules():
        name = type(part).__name__
        if "FractionalMaxPool" in name:
            return True
        if training and ("RReLU" in name or ("Dropout" in name and part.p > 0)):
            return True
    return False


def run(module: torch.nn.Module, arguments, device: torch.device) -> list[torch.Tensor | None]:
    """Outputs, and gradients of inputs and parameters."""

    def move(value):
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().to(device).requires_grad_(value.requires_grad)

    args, kwargs = tree_map(move, (arguments.args, arguments.kwargs))
    outputs = [output for output in tree_leaves(module(*args, **kwargs)) if isinstance(output, torch.Tensor)]
    differentiable = [output for output in outputs if output.requires_grad]
    if differentiable:
        # Weights that differ, so that an element in the wrong place shows.
        gradients = [torch.linspace(0.5, 1.5, y.numel()).view(y.shape).to(device, y.dtype) for y in differentiable]
        torch.autograd.backward(differentiable, gradients)
    inputs = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    results = [*(y.detach() for y in outputs), *(x.grad for x in (*inputs, *module.parameters()))]
    return [None if x is None else x.cpu() for x in results]


@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_module(device, info):
    count = 0
    for training in (True, False) if info.train_and_eval_differ else (True,):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cases = info.module_inputs_func(
                info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
            )
            for case in cases[:CASES_PER_MODULE]:
                if case.forward_input is None:
                    continue
                torch.manual_seed(0)
                module = info.module_cls(*case.constructor_input.args, **case.constructor_input.kwargs).train(training)
                if draws_random_numbers(module, training):
                    continue
                if any(isinstance(p, torch.nn.parameter.UninitializedParameter) for p in module.parameters()):
                    run(module, case.forward_input, torch.device("cpu"))  # makes the parameters
                    module.zero_grad()
                there = copy.deepcopy(module).to(device)
                expected = run(module, case.forward_input, torch.device("cpu"))
                results = run(there, case.forward_input, device)
                for ours, theirs in zip(results, expected, strict=True):
                    assert (ours is None) == (theirs is None)
                    if ours is not None:
                        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4, equal_nan=True)
                count += 1
    if count == 0:
        pytest.skip("draws random numbers in every case")
