"""Crop, flip and normalisation: against a loop over examples, and as every engine runs them."""

import math
from dataclasses import FrozenInstanceError

import pytest
import torch
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from gcfed import Algorithm
from gcfed.core import keys
from gcfed.data.augmentation import CROP_AND_FLIP, ImageTransform
from gcfed.errors import InputError

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
PLAIN = ImageTransform(MEAN, STD)
FULL = ImageTransform(MEAN, STD, padding=4, flip=True)


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (12, 3, 10, 7), generator=generator, dtype=torch.uint8)


def normalised(x):
    """The definition, in float64."""
    mean, std = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (MEAN, STD))
    return (x.to(torch.float64) / 255 - mean) / std


def augmented(x, key, padding, flip):
    """One example at a time, by slices."""
    rows, columns = x.shape[2:]
    out = []
    for image, (a, b, c) in zip(
        x, keys.uniform(keys.fold(key, CROP_AND_FLIP), (len(x), 3)).tolist(), strict=True
    ):
        black = torch.zeros(3, rows + 2 * padding, columns + 2 * padding, dtype=x.dtype)
        black[:, padding : padding + rows, padding : padding + columns] = image
        top, left = int(a * (2 * padding + 1)), int(b * (2 * padding + 1))
        crop = black[:, top : top + rows, left : left + columns]
        out.append(crop.flip(2) if flip and c < 0.5 else crop)
    return torch.stack(out)


@pytest.mark.parametrize(("padding", "flip"), [(4, True), (4, False), (0, True), (9, True)])
def test_equals_a_crop_and_a_flip_by_hand(images, padding, flip):
    transform, key = ImageTransform(MEAN, STD, padding, flip), keys.key(3)
    by_hand = augmented(images, key, padding, flip)
    out = transform(images, key)
    assert torch.equal(out, PLAIN(by_hand, None))
    assert not torch.equal(out, PLAIN(images, None))
    torch.testing.assert_close(out.double(), normalised(by_hand), atol=1e-6, rtol=0)


def test_what_comes_in_at_the_border_is_black():
    white = torch.full((64, 3, 8, 8), 255, dtype=torch.uint8)
    values = FULL(white, keys.key(0)).transpose(0, 1).flatten(1)
    for channel, (mean, std) in enumerate(zip(MEAN, STD, strict=True)):
        found = values[channel].unique()
        expected = torch.tensor([-mean / std, (1 - mean) / std], dtype=torch.float32)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_in_evaluation_it_normalises_and_no_more(images):
    assert torch.equal(FULL(images, None), PLAIN(images, None))
    assert torch.equal(PLAIN(images, keys.key(0)), PLAIN(images, None))
    torch.testing.assert_close(
        FULL(images, None).double(), normalised(images), atol=1e-6, rtol=0, check_dtype=True
    )


@pytest.mark.parametrize("key", [None, keys.key(5)])
@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        (torch.uint8, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.bfloat16, torch.bfloat16),
    ],
)
def test_dtype_and_shape(images, dtype, result, key):
    x = images if dtype == torch.uint8 else (images / 255).to(dtype)
    out = FULL(x, key)
    assert out.dtype == result and out.shape == x.shape
    if dtype in (torch.float32, torch.float64):
        torch.testing.assert_close(out.float(), FULL(images, key), atol=1e-6, rtol=0)


def test_the_end_of_a_batch_changes_no_example(images):
    key = keys.key(1)
    whole = FULL(images, key)
    for n in (0, 1, 5, 11):
        assert torch.equal(FULL(images[:n], key), whole[:n])


def test_vmap_equals_a_loop_bit_for_bit(images):
    x = torch.stack([images, images.flip(0), images.flip(1)])
    each = torch.stack([keys.key(0, client) for client in range(3)])
    together = vmap(FULL)(x, each)
    for client in range(3):
        assert torch.equal(together[client], FULL(x[client], each[client]))
    assert torch.equal(vmap(FULL, in_dims=(None, 0))(images, each)[1], FULL(images, each[1]))
    assert torch.equal(vmap(lambda v: FULL(v, None))(x)[2], FULL(x[2], None))


def test_a_traced_graph_follows_its_key(images):
    first, second = keys.key(0), keys.key(1)
    x, each = torch.stack([images, images.flip(0)]), torch.stack([first, second])
    assert torch.equal(make_fx(FULL)(images, first)(images, second), FULL(images, second))
    traced = make_fx(vmap(FULL))(x, each)
    assert torch.equal(traced(x.flip(0), each.flip(0)), vmap(FULL)(x.flip(0), each.flip(0)))
    targets = {str(node.target) for node in traced.graph.nodes}
    assert not [t for t in targets if "scatter" in t or "rand" in t or "_tensor_constant" in t]


def test_offsets_and_flips_are_uniform():
    """The two channels of this image tell a pixel's row and column, so where it came from."""
    n, padding, side = 20_000, 2, 7
    at = torch.arange(side, dtype=torch.float64)
    image = torch.stack([at[:, None].expand(-1, side), at.expand(side, -1)])
    transform = ImageTransform((0.0, 0.0), (1.0, 1.0), padding=padding, flip=True)
    out = transform(image.expand(n, -1, -1, -1), keys.key(2)).long()
    row, near, far = out[:, 0, 3, 3], out[:, 1, 3, 2], out[:, 1, 3, 4]
    top, left, flips = row - 1, torch.minimum(near, far), near > far
    assert abs(flips.double().mean() - 1 / 2) < 4 * math.sqrt(1 / 4 / n)
    for offset in (top, left):
        assert (offset.min(), offset.max()) == (0, 2 * padding)
    counts = torch.bincount(top * 10 + left * 2 + flips, minlength=50).double()
    statistic = ((counts - n / 50) ** 2 / (n / 50)).sum()
    assert len(counts) == 50 and abs(statistic - 49) < 4 * math.sqrt(2 * 49)


def test_engines_agree_on_augmented_clients(run, on_every_engine):
    transform, plain = ImageTransform((0.1,), (0.8,), 1, True), ImageTransform((0.1,), (0.8,))
    loop = on_every_engine(Algorithm(), transform=transform)
    unmoved = run(Algorithm(), engine="sequential", transform=plain)
    assert (loop.losses - unmoved.losses).abs().max() > 1e-3


def test_it_is_pure(images):
    before, key = images.clone(), keys.key(9)
    assert torch.equal(FULL(images, key), FULL(images, key))
    assert torch.equal(images, before) and torch.equal(key, keys.key(9))
    state = torch.get_rng_state()
    FULL(images, key)
    assert torch.equal(state, torch.get_rng_state())
    with pytest.raises(FrozenInstanceError):
        FULL.padding = 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mean": (0.5,), "std": (0.0,)}, "above 0"),
        ({"mean": (0.5,), "std": (float("nan"),)}, "above 0"),
        ({"mean": (0.5,), "std": (1.0, 1.0)}, "one mean and one std"),
        ({"mean": (), "std": ()}, "one mean and one std"),
        ({"mean": (0.5,), "std": (1.0,), "padding": -1}, "at least 0"),
    ],
)
def test_impossible_arguments_are_refused(arguments, words):
    with pytest.raises(InputError, match=words):
        ImageTransform(**arguments)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ({"image": torch.zeros(1)}, "one tensor"),
        (torch.zeros(2, 1, 4, 4), "3 channels"),
        (torch.zeros(3, 4, 4), "3 channels"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.int64), "uint8"),
    ],
)
def test_what_is_no_batch_of_images_is_refused(x, words):
    with pytest.raises(InputError, match=words):
        FULL(x, None)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_devices_draw_the_same_crops(images):
    x, each = images.cuda(), torch.stack([keys.key(0), keys.key(1)]).cuda()
    assert torch.equal(FULL(x, each[1]).cpu(), FULL(images, keys.key(1)))
    assert torch.equal(vmap(FULL, in_dims=(None, 0))(x, each)[1], FULL(x, each[1]))
