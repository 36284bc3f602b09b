"""A small BERT, made from a config, learns topics of texts under FedAvg and GC-Fed."""

import sys

import torch
from datasets import Dataset
from transformers import BertConfig, BertForSequenceClassification

from gcfed import fit


def texts(topics: torch.Tensor, number: int) -> Dataset:
    """Texts of 8 to 16 words, each word drawn by the chances that it has in the text's topic."""
    labels = torch.arange(number) % len(topics)
    words = torch.multinomial(topics[labels], 16, replacement=True)
    rows = [row[: 8 + i % 9].tolist() for i, row in enumerate(words)]
    return Dataset.from_dict({"input_ids": rows, "label": labels.tolist()})


seeds, rounds = map(int, sys.argv[1:] or (1, 10))
torch.manual_seed(0)
topics = torch.rand(8, 40).pow(4)
topics[:, 0] = 0  # the word that pads
train, test = texts(topics, 1600), texts(topics, 400)
config = BertConfig(
    vocab_size=40,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    num_labels=8,
    initializer_range=0.1,
)
bert = BertForSequenceClassification(config)
settings = {"optimizer": "adamw", "lr": 0.002, "batch_size": 20, "epochs": 2, "rounds": rounds}
settings |= {"alpha": 0.3, "clients": 20, "engine": "sequential"}

for name in ("fedavg", "gcfed"):
    for seed in range(seeds):
        history = fit(bert, train, test, algorithm=name, seed=seed, **settings)
        print(f"{name}, seed {seed}: {100 * history['test_accuracy'][-1]:.1f} %")
