"""A small GPT-2 that knows a language learns its dialects by LoRA, under FedAvg and GC-Fed."""

import sys

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from gcfed import fit
from gcfed.data import dataset_from


def texts(dialects: Tensor, number: int) -> Dataset:
    """Texts of 8 to 16 words; a dialect has its chances that one word follows another."""
    spoken, words = torch.arange(number) % len(dialects), [torch.randint(1, 40, (number,))]
    for _ in range(15):
        words.append(torch.multinomial(dialects[spoken, words[-1]], 1)[:, 0])
    rows = [row[: 8 + i % 9].tolist() for i, row in enumerate(torch.stack(words, 1))]
    return Dataset.from_dict({"input_ids": rows, "dialect": spoken.tolist()})


def next_word(logits: Tensor, y: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits[:, :-1].mT, y[:, 1:], reduction="none")


seeds, rounds = map(int, sys.argv[1:] or (1, 10))
torch.manual_seed(0)
language = torch.rand(1, 40, 40).pow(8)
language[..., 0] = 0  # the word that pads
dialects = language * torch.rand(8, 40, 40).pow(4)
settings = {"optimizer": "adamw", "lr": 0.01, "batch_size": 20, "epochs": 2, "rounds": rounds}
settings |= {"loss": next_word, "metrics": ["perplexity"], "engine": "sequential"}
columns = (("input_ids",), "input_ids")  # the labels are the texts themselves
test = texts(dialects, 400)
known = dataset_from([texts(language, 800)], test, columns=columns)
spoken = dataset_from(texts(dialects, 1600), test, columns=columns, client="dialect")
words = {"vocab_size": 40, "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0}
still = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
config = GPT2Config(n_embd=32, n_layer=2, n_head=2, **words, **still)
base = fit(GPT2LMHeadModel(config), known, algorithm="fedavg", cohort=1, **settings)
lora = LoraConfig(r=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
gpt2 = get_peft_model(base.module, lora)
print(f"before LoRA: perplexity {base['test_perplexity'][-1]:.2f}")
for name in ("fedavg", "gcfed(lam=0.5)"):
    for seed in range(seeds):
        history = fit(gpt2, spoken, algorithm=name, seed=seed, **settings)
        print(f"{name}, seed {seed}: perplexity {history['test_perplexity'][-1]:.2f}")
