"""What a run is: read, checked, written out, and read again."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from running import TINY, tiny

from gcfed import SGD, AdamW, Config, InputError
from gcfed.config.settings import describe, make, override
from gcfed.config.toml import assignment, read


def test_the_resolved_file_reads_back_as_the_same_config(tmp_path):
    odd = 'a "quoted" \\ name, tab\t, é, \x7f'
    config = tiny(init=odd, plugins=("a.py", odd), lr=1e-5, weight_decay=0.0, alpha=0.05)
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    assert make(read(path)) == config
    assert "partition_seed" not in config.to_toml()  # TOML has no null


def test_the_defaults_are_those_of_the_paper():
    config = Config()
    assert config.schedule().epochs == 5
    assert config.schedule().fill == "repeat"
    assert config.local_optimizer() == SGD(0.01, 0.9, 1e-5)
    assert config.validation == 0
    assert tiny(optimizer="adamw", lr=0.1).local_optimizer() == AdamW(0.1, weight_decay=1e-5)
    assert tiny(epochs=None, steps=7).schedule().epochs is None


@pytest.mark.parametrize("alpha", [0.05, 1, np.float64(0.05)])
def test_alpha_stands_for_a_dirichlet_partition(alpha):
    assert Config(alpha=alpha).partition == f"dirichlet(alpha={float(alpha)})"
    kept = Config(alpha=alpha, partition="dirichlet(alpha=3, min_size=2)").partition
    assert kept == f"dirichlet(alpha={float(alpha)}, min_size=2)"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"roundz": 3}, "unknown key: 'roundz'; did you mean 'rounds'"),
        ({"alpah": 3}, "did you mean 'alpha'"),
        ({"rounds": 0}, "rounds should be greater than or equal to 1; not 0"),
        ({"rounds": True}, "rounds should be a valid integer; not True"),
        ({"rounds": 2.5}, "rounds should be a valid integer"),
        ({"lr": "0.1"}, "lr should be a valid number; not '0.1'"),
        ({"lr": 0}, "lr should be greater than 0"),
        ({"lr": float("inf")}, "lr should be a finite number"),
        ({"lr": float("nan")}, "lr should be"),
        ({"momentum": float("nan")}, "momentum should be"),
        ({"validation": float("nan")}, "validation should be"),
        ({"validation": 1.0}, "validation should be less than 1"),
        ({"weight_decay": -1}, "weight_decay should be"),
        ({"seed": -1}, "seed should be"),
        ({"seed": 2**32}, "seed should be"),
        ({"fill": "repeet"}, "fill is one of repeat, none; not 'repeet'; did you mean 'repeat'"),
        ({"buffers": "x"}, "buffers is one of average, local; not 'x'$"),
        ({"plugins": [3]}, "plugins should be a valid string"),
        ({"alpha": 0}, "alpha is a positive number; not 0"),
        ({"alpha": -0.5}, "alpha is a positive number"),
        ({"alpha": float("nan")}, "alpha is a positive number; not nan"),
        ({"alpha": float("inf")}, "alpha is a positive number"),
        ({"alpha": "x"}, "alpha is a positive number; not 'x'"),
        ({"alpha": 1, "partition": "iid"}, "alpha is short for dirichlet"),
        ({"alpha": 1, "partition": "idd"}, "did you mean 'iid'"),
        ({"cohort": 6, "clients": 5}, "cohort=6 is more than clients=5"),
        ({"epochs": 1, "steps": 1}, "epochs and steps: give one of them"),
        ({"optimizer": "adamw", "momentum": 0.5}, "momentum belongs to sgd"),
        ({"lr_decay": 0.9}, "lr_decay=0.9 goes with lr_schedule = 'exponential'"),
        ({"algorithm": {"name": "fedavg"}}, "algorithm should be a valid string"),
    ],
)
def test_what_is_refused(values, message):
    with pytest.raises(InputError, match=message):
        Config(**values)


def test_everything_wrong_is_said_at_once_and_where():
    with pytest.raises(InputError) as error:
        make({"rounds": 0, "lr": -1, "foo": 2}, "my.toml")
    said = str(error.value).splitlines()
    assert len(said) == 3
    assert all(line.startswith("my.toml: ") for line in said)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("lr=0.1", 0.1),
        ("lr = 1e-3", 1e-3),
        ("rounds=3", 3),
        ("model=mlp", "mlp"),
        ("model='mlp'", "mlp"),
        ("model=mlp(hidden=(8,))", "mlp(hidden=(8,))"),
        ("algorithm=fedlc(tau=0.1) + gcfed", "fedlc(tau=0.1) + gcfed"),
        ('plugins=["a.py", "b.py"]', ["a.py", "b.py"]),
        ("data_dir=/some/where", "/some/where"),
        ("init=a=b.safetensors", "a=b.safetensors"),
    ],
)
def test_an_assignment_is_read_as_toml_or_else_as_text(text, value):
    assert assignment(text) == (text.partition("=")[0].strip(), value)


@pytest.mark.parametrize("text", ["lr", "=3", ""])
def test_what_is_no_assignment(text):
    with pytest.raises(InputError, match="--set takes key=value"):
        assignment(text)


def test_what_comes_later_displaces_what_it_cannot_stand_beside():
    resolved = tomllib.loads(tiny(momentum=0.9).to_toml()) | {"epochs": 5}
    assert make(override(resolved, {"steps": 3})).epochs is None
    assert make(override(resolved, {"optimizer": "adamw"})).momentum is None
    assert make(override(resolved, {"optimizer": "sgd"})).momentum == 0.9
    decayed = {"lr_schedule": "exponential", "lr_decay": 0.9}
    assert make(override(decayed, {"lr_schedule": "cosine"})).lr_decay == 1
    assert make(override(decayed, {"lr": 0.5})).lr_decay == 0.9
    assert make(override({"alpha": 0.1}, {"partition": "iid"})).partition == "iid"
    with pytest.raises(InputError, match="epochs and steps"):
        make(override({}, {"epochs": 1, "steps": 1}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"lr = x\n", "bad.toml is not a TOML file: .*line 1"),
        (b"lr = 1\nlr = 2\n", "bad.toml is not a TOML file"),
        (b"\xff\xfe", "bad.toml is not a TOML file"),
    ],
)
def test_a_broken_file(tmp_path, content, message):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read(path)


def test_a_file_that_is_not_there_or_a_folder(tmp_path):
    with pytest.raises(InputError, match="there is no config file"):
        read(tmp_path / "none.toml")
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path)


def test_every_key_is_described_with_its_choices():
    rows = {key: (default, text) for key, default, text in describe()}
    assert rows.keys() == Config.model_fields.keys()
    assert all(text for _, text in rows.values())
    assert rows["fill"] == ('"repeat"', rows["fill"][1])
    assert "(repeat, none)" in rows["fill"][1]
    assert rows["lr"][0] == "0.01"
    assert rows["init"][0] == ""


def test_a_plugin_may_be_named_alone():
    assert Config(plugins="my.py").plugins == ("my.py",)
    assert Path(Config(**TINY).dataset).suffix == ""  # nothing is looked for on the disk


def test_a_value_of_several_lines_is_said_in_one():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with pytest.raises(InputError, match="optimizer is one of sgd, adamw; not SGD") as error:
        Config(optimizer=optimizer)
    assert "\n" not in str(error.value)
