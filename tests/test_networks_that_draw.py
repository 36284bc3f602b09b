"""Networks of other packages that draw in training: every engine draws the same for them."""

import pytest
import torch
from torch import nn
from vision import vision

from gcfed import SGD, Algorithm, FederatedData, Model, Schedule, Setup, Workers, simulate

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap's, rarely


class Logits(nn.Module):
    """A module of transformers, of which only the logits are read."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x).logits


def efficientnet():
    """EfficientNet by its blocks, with stochastic depth; group norms, since engines pad."""
    models = vision("torchvision.models.efficientnet")
    blocks = [
        models.MBConvConfig(1, 3, 1, 8, 8, 1, 1.0, 1.0),
        models.MBConvConfig(2, 3, 2, 8, 16, 2, 1.0, 1.0),
    ]
    return models.EfficientNet(
        blocks, 0.2, stochastic_depth_prob=0.5, num_classes=5, norm_layer=_group_norm
    )


def swin():
    swin = vision("torchvision.models.swin_transformer")
    return swin.SwinTransformer(
        patch_size=[2, 2],
        embed_dim=8,
        depths=[2, 2],
        num_heads=[2, 2],
        window_size=[2, 2],
        dropout=0.1,
        attention_dropout=0.1,
        stochastic_depth_prob=0.5,
        num_classes=5,
    )


def convnext():
    convnext = vision("torchvision.models.convnext")
    blocks = [convnext.CNBlockConfig(8, 16, 2), convnext.CNBlockConfig(16, None, 2)]
    return convnext.ConvNeXt(blocks, stochastic_depth_prob=0.5, num_classes=5)


def drop_path():
    timm = vision("timm")
    return timm.create_model(
        "vit_tiny_patch16_224",
        img_size=16,
        patch_size=4,
        embed_dim=8,
        depth=2,
        num_heads=2,
        num_classes=5,
        drop_rate=0.1,
        attn_drop_rate=0.1,
        drop_path_rate=0.5,
    )


def bert():
    """The default configuration, dropout of attention and all, but small."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        num_labels=5,
    )
    return Logits(transformers.BertForSequenceClassification(config))


OF_VISION = [efficientnet, swin, convnext, drop_path]


def _group_norm(channels):
    return nn.GroupNorm(2, channels)


@pytest.mark.parametrize(
    "network",
    [
        *(pytest.param(each, marks=pytest.mark.vision) for each in OF_VISION),
        pytest.param(bert, marks=pytest.mark.slow),
    ],
)
def test_every_engine_trains_it_alike(network, close):
    torch.manual_seed(0)
    model = Model(network())
    draws = torch.Generator().manual_seed(1)
    words = torch.randint(20, (14, 8), generator=draws)
    x = words if network is bert else torch.randn(14, 3, 16, 16, generator=draws)
    parts = list(torch.arange(14).split([5, 9]))
    data = FederatedData(x, torch.randint(5, (14,), generator=draws), parts, 5)
    schedule = Schedule(rounds=1, cohort_size=2, epochs=1, batch_size=4, fill="none")

    def last(engine):
        setup = Setup(
            algorithm=Algorithm(),
            model=model,
            data=data,
            optimizer=SGD(lr=0.01),
            schedule=schedule,
            engine=engine,
        )
        assert setup.own_draws == ()
        *_, result = simulate(setup)
        return result

    with Workers(processes=2) as workers:
        loop, mapped, parts = (last(e) for e in ("sequential", "vectorized", workers))
    close(loop.server, mapped.server)
    close(loop.server, parts.server)
