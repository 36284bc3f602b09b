"""What a module must be to be wrapped in a `Model`: of a kind that can be copied and trained."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.weight_norm import WeightNorm

from gcfed.core.torch_internals import has_full_backward_hooks, has_gradient_hooks, pre_hooks
from gcfed.errors import InputError

WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def check_module(module: Any) -> None:
    """Refuse what is no module, and modules that runs cannot give weights to or take a gradient of.

    What a hook does to a gradient would else be left out without a word.
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"a model wraps an nn.Module; not {module!r:.200}")
    if isinstance(module, torch.jit.ScriptModule):
        raise InputError(
            "torch.jit has compiled the module as a whole, and such a one cannot be given the "
            "weights of a client: give the module that it was made of"
        )
    if isinstance(module, WRAPPERS):
        raise InputError(
            f"the module is wrapped in {type(module).__name__}, which spreads batches over "
            "devices: give the module inside, module.module"
        )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            what = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
            raise InputError(
                f"the {what} {name} has no shape yet, as that of a LazyLinear has none: call "
                "the module on an example first"
            )
    for path, part in module.named_modules():
        _check_part(path or "the module", part)
    for name, weight in module.named_parameters():
        if weight.requires_grad:
            _check_weight(name, weight)


def _check_part(path: str, part: nn.Module) -> None:
    if has_full_backward_hooks(part):
        raise InputError(
            f"{path} ({type(part).__name__}) has a backward hook, which torch.func, by which "
            "gradients are taken, does not call: remove it"
        )
    looked_up = isinstance(part, nn.Embedding | nn.EmbeddingBag)
    if looked_up and part.sparse and part.weight.requires_grad:
        raise InputError(
            f"{path} ({type(part).__name__}) has sparse gradients, and those of all weights are "
            "added up as dense ones: make it with sparse=False"
        )


def _check_weight(name: str, weight: Tensor) -> None:
    if weight.is_complex():
        raise InputError(
            f"the parameter {name} holds complex numbers, and real ones are trained: keep its real "
            "and imaginary parts, as torch.view_as_real gives them, and call torch.view_as_complex "
            "in forward"
        )
    if has_gradient_hooks(weight):
        raise InputError(
            f"the parameter {name} has a hook on its gradient, which torch.func, by which "
            "gradients are taken, does not call: remove it, and do in forward what it is for, as "
            "by weight * mask + (weight * ~mask).detach() where some numbers are to stay"
        )


def copied(module: nn.Module) -> nn.Module:
    """A copy of a module; one that cannot be copied is refused, with what stands in the way."""
    try:
        return copy.deepcopy(module)
    except Exception as error:
        found = next(_not_copied(module), f"{type(error).__name__}: {error}")
        raise InputError(
            f"the module cannot be copied, and runs train a copy of it: {found}"
        ) from error


def _not_copied(module: nn.Module) -> Iterator[str]:
    """What cannot be copied of the modules in a module, and what to do about it."""
    for path, part in module.named_modules():
        tensors = {**part._parameters, **part._buffers}
        held = {k: v for k, v in vars(part).items() if k not in ("_parameters", "_modules")}
        for name, value in {**held, **tensors}.items():
            try:
                copy.deepcopy(value)
            except Exception as error:
                whole = f"{path}.{name}".strip(".")
                if isinstance(value, Tensor) and not value.is_leaf:
                    yield f"{whole} is computed from other tensors and kept: {_instead(part)}"
                else:
                    said = str(error).partition("\n")[0][:200]
                    why = f"its attribute {whole} fails with {type(error).__name__}: {said}"
                    yield f"{why}; keep it elsewhere, or write a __deepcopy__"


def _instead(part: nn.Module) -> str:
    """What to write where a module keeps a tensor that it computes before it is called."""
    hooks = pre_hooks(part)
    if any(isinstance(hook, WeightNorm) for hook in hooks):
        return "take torch.nn.utils.parametrizations.weight_norm, not torch.nn.utils.weight_norm"
    if any(isinstance(hook, BasePruningMethod) for hook in hooks):
        return (
            "call torch.nn.utils.prune.remove first; if what was pruned is to stay zero, multiply "
            "by the mask in a parametrization (torch.nn.utils.parametrize)"
        )
    return "compute it in forward, or keep what .detach() gives"
