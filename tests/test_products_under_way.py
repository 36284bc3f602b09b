"""What a product on a Hopper's tensor cores still reads is not overwritten, by the compiled code.

Such a product is under way while a kernel goes on.  Triton fetches operands ahead into so many
copies of shared memory; where these are too few, the next is fetched over one that is being read.
Results are then wrong now and then, most of all where several processes share a GPU.
"""

import re

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

pytest.importorskip("triton")

from gcfed.kernels import precompiling
from gcfed.kernels.fusing import fuse_layers
from gcfed.kernels.launching import noted_launches
from gcfed.kernels.precompiling import start_compiling

pytestmark = pytest.mark.slow

PAPER = (nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)), (50, 3, 32, 32)
PAPER_2 = (nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)), (50, 32, 16, 16)
PFL = (nn.Conv2d(3, 32, 3), nn.ReLU()), (10, 3, 32, 32)
PFL_2 = (nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)), (10, 32, 30, 30)
RESNET = (nn.Conv2d(64, 64, 3, padding=1),), (50, 64, 32, 32)
RESNET_2 = (nn.Conv2d(128, 256, 3, stride=2, padding=1, bias=False),), (50, 128, 16, 16)
LINEAR = (nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, 10)), (50, 4096)
RACING = (
    "racing_kernel",
    "multiply_and_sum",
    ("bfloat16", "bfloat16", "float32", "float32", 640, 64),
)


@pytest.fixture
def code(monkeypatch, tmp_path):
    """Compiles launches for a Hopper; gives the code of each in which copies can be seen."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(precompiling, "current_target", lambda: ("cuda", 90, 32))

    def compiled(launches):
        start_compiling(launches, processes := [])
        for process in processes:
            process.join()
        texts = [path.read_text() for path in tmp_path.glob("*/*.ttgir")]
        assert len(texts) == len(launches)
        return texts

    return compiled


def launches_of(layers, shape, dtype):
    """What the layers and their gradients launch, for three clients."""
    net, _ = fuse_layers(nn.Sequential(*layers))
    weights = {n: torch.zeros(3, *p.shape) for n, p in net.named_parameters()}
    x = torch.zeros(3, *shape, dtype=dtype)

    def score(p, x):
        return functional_call(net, p, (x,)).float().sum()

    with noted_launches() as notes:
        vmap(grad(score, argnums=(0, 1)))(weights, x)
    return list(dict.fromkeys(notes))


def overwritten(text):
    """The operands of products under way that have fewer copies than are fetched at a time.

    An operand is fetched once for each round of the loop that it is ahead, and once in the loop.
    """
    copies = dict(re.findall(r"(%\w+) = ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x", text))
    whole = {part: part for part in copies}
    for part, of in re.findall(r"(%\w+) = ttg\.memdesc_\w+ (%\w+)", text):
        whole[part] = whole.get(of, of)
    fetched = [whole[to] for to in re.findall(r"async_copy_global_to_local %[\w#]+, (%\w+)", text)]
    read = re.findall(r"warp_group_dot (%[\w#]+), (%[\w#]+), .*isAsync = true", text)
    operands = {whole.get(x) for pair in read for x in pair} & copies.keys()
    return {x for x in operands if int(copies[x]) < fetched.count(x)}, len(operands)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "net", [PAPER, PAPER_2, PFL, PFL_2, RESNET, RESNET_2, LINEAR],
    ids=["paper", "paper 2", "pfl", "pfl 2", "resnet", "resnet 2", "linear"],
)  # fmt: skip
def test_operands_stay_until_products_are_done(net, dtype, code):
    found = [overwritten(text) for text in code(launches_of(*net, dtype))]
    assert not set().union(*(operands for operands, _ in found))
    assert sum(seen for _, seen in found)  # there are products under way, and they were looked at


def test_an_operand_that_is_read_beside_a_product_is_found(code):
    """Else the test above would find nothing; a Triton that does better makes this one fail."""
    (text,) = code([(*RACING, (("num_warps", 4), ("num_stages", 2)))])
    operands, seen = overwritten(text)
    assert len(operands) == 1 and seen == 2
