"""What a run is: what differs from the defaults, as it would be said today."""

import functools
import json

import pytest
from running import tiny

from gcfed import ALGORITHMS, MODELS, InputError, RunStore, load_run, resume, run
from gcfed.config.build import build
from gcfed.config.identity import LAST_BITS, WAYS, digest, identity, normalised
from gcfed.config.plugins import load_plugin
from gcfed.config.settings import Config

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32", "registries")

DATA = "0" * 64


def of(config):
    return identity(build(config), DATA)


def test_an_identity_is_what_differs_from_the_defaults():
    """Written out here, so that nobody changes the identity of all runs without seeing it."""
    assert of(tiny()) == {
        "algorithm": "fedavg",
        "dataset": "synthetic(train=200, test=50)",
        "model": "mlp(hidden=(8,))",
        "clients": 10,
        "cohort": 3,
        "epochs": 1,
        "batch_size": 10,
        "momentum": 0.9,
        "partition_seed": 0,
        "init_seed": 0,
        "code_sha256": [],
        "data_sha256": DATA,
    }
    assert digest(of(tiny())).startswith("46a1ae1fb766")


def test_texts_are_without_what_has_its_default():
    made = of(
        tiny(
            algorithm="fedprox(mu=0.5) + gcfed(lam=None)",
            partition="dirichlet(alpha=0.3, min_size=1)",
            faults="random(dropout=0.5)",
        )
    )
    assert made["algorithm"] == "fedprox(mu=0.5) + gcfed"
    assert made["partition"] == "dirichlet(alpha=0.3)"
    assert made["faults"] == "random(dropout=0.5)"
    assert "partition" not in of(tiny(partition="dirichlet(alpha=0.1, mode='per_class')"))


def test_a_recorded_identity_says_the_same_again():
    for config in (tiny(), tiny(algorithm="fedlc(tau=0.3) + gcfed", lr_schedule="cosine", seed=3)):
        made = of(config)
        assert normalised(json.loads(json.dumps(made))) == made


def test_what_is_not_known_stays():
    strange = {"colour": "blue", "algorithm": "nobodys(x=1)", "model": "mlp(colour=1)"}
    assert normalised(strange) == strange
    assert normalised({"colour": None}) == {"colour": None}


@pytest.mark.parametrize("damaged", [None, [], "", 3, "fedavg"])
def test_what_is_damaged_is_the_identity_of_no_run(damaged):
    assert normalised(damaged) == {}


def test_damaged_values_break_nothing():
    damaged = {"algorithm": 3, "model": ["("], "partition": "((", "numerics": "("}
    assert normalised(damaged) == {**damaged, "numerics": {"gcfed": "("}}


def test_a_new_setting_changes_no_identity(monkeypatch):
    before = of(tiny(seed=1))

    class More(Config):
        colour: str = "blue"
        depth: int | None = 5
        shades: tuple[str, ...] = ()

    monkeypatch.setattr("gcfed.config.identity.Config", More)
    values = tiny(seed=1).model_dump()
    assert of(More(**values)) == before == normalised(before)
    assert of(More(**values, colour="red")) == {**before, "colour": "red"}
    assert of(More(**values, shades=("dark",))) == {**before, "shades": ["dark"]}
    assert of(More(**values, depth=None)) == {**before, "depth": None}


def test_a_new_argument_changes_no_identity(monkeypatch):
    before, config = of(tiny(algorithm="fedprox(mu=0.5)")), tiny(algorithm="fedprox(mu=0.5)")
    mlp = MODELS["mlp"]

    @functools.wraps(mlp)
    def wider(shape, num_classes, *, colour: str = "blue", hidden: tuple[int, ...] = (64, 64)):
        return mlp(shape, num_classes, hidden=hidden)

    del wider.__wrapped__  # whose signature would be seen
    wider.__annotations__ = {"colour": str, "hidden": tuple[int, ...]}
    monkeypatch.setitem(MODELS._entries, "mlp", wider)
    assert "colour='blue'" in build(config).config.model
    assert of(config) == before
    red = of(config.model_copy(update={"model": "mlp(hidden=(8,), colour='red')"}))
    assert red == {**before, "model": "mlp(colour='red', hidden=(8,))"}


def with_numerics(monkeypatch, registry, name, version):
    monkeypatch.setitem(registry._numerics, name, version)


def test_numerics_count_for_the_runs_that_use_what_changed(monkeypatch):
    texts = ["scaffold", "scaffold + gcfed", "gcfed", "fedavg"]
    before = {text: of(tiny(algorithm=text)) for text in texts}
    with_numerics(monkeypatch, ALGORITHMS, "scaffold", 2)
    after = {text: of(tiny(algorithm=text)) for text in texts}
    changed = {"numerics": {"algorithm scaffold": 2}}
    for text in texts:
        assert after[text] == before[text] | (changed if "scaffold" in text else {})
    with_numerics(monkeypatch, MODELS, "mlp", 3)
    assert of(tiny())["numerics"] == {"model mlp": 3}
    assert "numerics" not in of(tiny(model="cnn", dataset="fashion10k"))


def test_scaffold_counts_as_other_numbers_where_float32_lost_more_than_last_bits():
    versions = {m: of(tiny(algorithm="scaffold", momentum=m)).get("numerics") for m in (0.9, 0.99)}
    assert versions == {0.9: None, 0.99: {"algorithm scaffold": 2}}
    assert "numerics" not in of(tiny(algorithm="gcfed", momentum=0.99))


@pytest.mark.parametrize("key", ["dataset", "partition", "sampler", "availability", "faults"])
def test_every_named_part_has_numerics(monkeypatch, key):
    from gcfed.config.identity import NAMED

    name = getattr(tiny(), key).partition("(")[0]
    with_numerics(monkeypatch, NAMED[key], name, 2)
    assert of(tiny())["numerics"] == {f"{NAMED[key].kind} {name}": 2}


def test_numerics_of_all_of_gcfed(monkeypatch):
    monkeypatch.setattr("gcfed.config.identity.NUMERICS", 2)
    assert of(tiny())["numerics"] == {"gcfed": 2}
    assert normalised({"numerics": 1}) == {}
    assert normalised({"numerics": 2}) == {"numerics": {"gcfed": 2}}


def test_an_entry_says_its_numerics_where_it_is_registered():
    @MODELS.register("second", numerics=2)
    def second(shape, num_classes):
        return None

    assert MODELS.numerics("second") == 2 and MODELS.numerics("mlp") == 1


def test_a_run_with_other_numerics_is_not_gone_on_with(monkeypatch, tmp_path):
    run(tiny(algorithm="scaffold + gcfed"), tmp_path / "a")
    run(tiny(algorithm="fedavg"), tmp_path / "b")
    with_numerics(monkeypatch, ALGORITHMS, "scaffold", 2)
    with pytest.raises(InputError, match="a began with other numerics of scaffold than there is"):
        resume(tmp_path / "a", rounds=3)
    assert resume(tmp_path / "b", rounds=3)["rounds"] == 3
    monkeypatch.setattr("gcfed.config.identity.NUMERICS", 5)
    with pytest.raises(InputError, match="other numerics of gcfed and numerics of scaffold than"):
        resume(tmp_path / "a", rounds=3)


def test_a_run_that_does_not_say_what_it_is_made_of_is_not_gone_on_with(tmp_path):
    run(tiny(), tmp_path / "a")
    made = load_run(tmp_path / "a").provenance
    (tmp_path / "a" / "provenance.json").write_text(json.dumps({**made, "identity": None}))
    with pytest.raises(InputError, match=r"does not say what it is made of: its provenance\.json"):
        resume(tmp_path / "a", rounds=3)


def test_a_setting_that_only_one_side_has_is_named(tmp_path):
    run(tiny(), tmp_path / "a")
    made = load_run(tmp_path / "a").provenance
    recorded = {**made["identity"], "colour": None}
    (tmp_path / "a" / "provenance.json").write_text(json.dumps({**made, "identity": recorded}))
    with pytest.raises(InputError, match="a began with other colour than there is now"):
        resume(tmp_path / "a", rounds=3)


def test_an_old_run_of_a_plugin_is_found_once_the_plugin_is_loaded(tmp_path, monkeypatch):
    """Its texts say every argument, which nobody can shorten before."""
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "from gcfed import MODELS\n"
        "@MODELS.register('mine')\n"
        "def mine(shape, num_classes, *, scale: float = 1.0):\n"
        '    """Linear."""\n'
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))\n"
    )
    store, config = RunStore(tmp_path / "runs"), tiny(model="mine", plugins=("mine.py",))
    monkeypatch.chdir(tmp_path)
    path = store.run(config).path
    made = load_run(path).provenance
    old = {**made["identity"], "model": "mine(scale=1.0)"}
    (path / "provenance.json").write_text(json.dumps({**made, "identity": old}))
    registered = MODELS._entries.pop("mine")
    assert store.find_sha256(digest(made["identity"]), 0) is None
    MODELS._entries["mine"] = registered
    assert store.find(config).path == path
    assert load_plugin("mine.py")


def test_what_changes_no_numbers_is_left_out_of_recorded_identities_too():
    """So that a setting of which this is found out later keeps the runs there are."""
    assert Config.model_fields.keys() >= LAST_BITS | WAYS
    assert normalised({"lr": 0.5, **dict.fromkeys(LAST_BITS | WAYS, "other")}) == {"lr": 0.5}
