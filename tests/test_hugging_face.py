"""Models of transformers, adapters of peft and tables of datasets, as they come."""

import pytest
import torch

from gcfed import Model, fit
from gcfed.core.roles import Role
from gcfed.data import dataset_from

pytest_plugins = ["running"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("float32"),
    pytest.mark.filterwarnings("ignore:workers run each step as it is written"),
]

SETTINGS = {"clients": 3, "cohort": 2, "partition": "iid", "rounds": 1, "batch_size": 4}
SETTINGS |= {"steps": 2}
SMALL = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 12}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
IDS = [[1 + (i * k) % 11 for k in range(2 + i % 5)] for i in range(30)]


@pytest.fixture
def table():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "input_ids": datasets.List(datasets.Value("int32")),
            "label": datasets.ClassLabel(names=["even", "odd"]),
        }
    )
    labels = [len(row) % 2 for row in IDS]
    return datasets.Dataset.from_dict({"input_ids": IDS, "label": labels}, features)


@pytest.fixture
def bert():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(**SMALL, **STILL, num_attention_heads=2, num_labels=2)
    return transformers.BertForSequenceClassification(config)


@pytest.fixture
def gpt2():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    size = {"vocab_size": 12, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    still = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, **still, **ends))


def next_token(logits, y):
    return torch.nn.functional.cross_entropy(logits[:, :-1].mT, y[:, 1:], reduction="none")


def test_bert_is_trained_by_every_engine_as_it_comes(bert, table):
    """Its loss is that which transformers computes itself of the same batch."""
    data = dataset_from(table, table)
    assert data.class_names == ("even", "odd") and list(data.train.x) == [
        "input_ids",
        "attention_mask",
    ]
    one = fit(bert, data, engine="sequential", **SETTINGS)
    with torch.no_grad():
        own = one.module(**data.test.x, labels=data.test.y)
    assert one["test_loss"][-1] == pytest.approx(own.loss.item(), rel=1e-5)
    with pytest.warns(UserWarning, match=r"vectorized engine cannot .*masking_utils\.py"):
        mapped = fit(bert, data, engine="vectorized", **SETTINGS)
    workers = fit(bert, data, engine="workers(processes=2)", **SETTINGS)
    assert mapped.records == one.records
    assert workers["test_loss"] == pytest.approx(one["test_loss"], rel=1e-4)
    low = fit(bert, data, engine="sequential", precision="bf16", **SETTINGS)
    assert low["test_loss"] == pytest.approx(one["test_loss"], rel=0.02)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_padded_text_is_judged_as_it_is_alone(wrapped, table):
    """GPT-2 looks for the end of a text by its pad token, which it has under an adapter too."""
    transformers = pytest.importorskip("transformers")
    size = {"vocab_size": 30, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    config = transformers.GPT2Config(**size, pad_token_id=29, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2ForSequenceClassification(config)
    if wrapped:
        peft = pytest.importorskip("peft")
        model = peft.get_peft_model(
            model, peft.LoraConfig("SEQ_CLS", target_modules=["c_attn"], fan_in_fan_out=True)
        )
    history = fit(model, table, table, engine="sequential", algorithm="fedavg", **SETTINGS)
    with torch.no_grad():
        together = history.module(**history.experiment.dataset.test.x).logits
        alone = [history.module(input_ids=torch.tensor([row])).logits[0] for row in IDS]
    torch.testing.assert_close(together, torch.stack(alone))


def test_gpt2_with_lora_learns_the_next_token(gpt2, table):
    """Perplexity is that of transformers' own loss, where all texts count alike."""
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    module = peft.get_peft_model(gpt2, lora)
    roles = Model(module).roles
    assert len(roles) == 2 and all(role.is_weight for role in roles.values())
    assert all(isinstance(role, Role) for role in roles.values())
    data = dataset_from(table, table, columns=(("input_ids",), "input_ids"))
    settings = SETTINGS | {"metrics": ["perplexity"], "loss": next_token}
    settings |= {"algorithm": "gcfed(lam=0.5)", "engine": "sequential"}
    history = fit(module, data, **settings)
    means = []
    for ids in IDS:
        with torch.no_grad():
            text = torch.tensor([ids])
            means.append(history.module(input_ids=text, labels=text).loss)
    wanted = torch.stack(means).mean().exp().item()
    assert history["test_perplexity"][-1] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("kind", ["BertForTokenClassification", "BertForMaskedLM"])
def test_a_label_at_each_place_is_learned(kind):
    """The loss is that of transformers, where as many labels of each text count."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(**SMALL, **STILL, num_attention_heads=2, num_labels=3)
    module = getattr(transformers, kind)(config)
    ids = torch.randint(1, 12, (30, 6))
    labels = ids if kind == "BertForMaskedLM" else ids % 3
    y = torch.where((torch.arange(6) + torch.arange(30)[:, None]) % 3 == 0, -100, labels)
    data = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, y
    settings = SETTINGS | {"loss": "token", "metrics": ["accuracy", "macro_f1", "perplexity"]}
    one = fit(module, data, data, engine="sequential", **settings)
    with torch.no_grad():
        own = one.module(**data[0], labels=y)
    assert one["test_loss"][-1] == pytest.approx(own.loss.item(), rel=1e-5)
    assert one["test_perplexity"][-1] == pytest.approx(own.loss.exp().item(), rel=1e-5)
    right = (own.logits.argmax(2) == y)[y != -100].double().mean().item()
    assert one["test_accuracy"][-1] == pytest.approx(right)
    workers = fit(module, data, data, engine="workers(processes=2)", **settings)
    assert workers["test_loss"] == pytest.approx(one["test_loss"], rel=1e-4)


def test_probes_look_inside(bert, table):
    history = fit(bert, table, table, engine="sequential", probes=["cka", "drift"], **SETTINGS)
    assert 0 < history["cka.new.classifier"][0] <= 1
