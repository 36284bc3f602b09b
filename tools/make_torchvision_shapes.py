"""Write tests/torchvision_shapes.json: names and shapes of the tensors in torchvision's models.

    pip download --no-deps torchvision==0.28.0 -d WHEELS
    python tools/make_torchvision_shapes.py WHEELS/torchvision-0.28.0-*.whl

The wheel is read and not installed: its compiled part needs the CUDA build of torch, the Python
files of its models do not.  They are imported from a temporary copy, with stand-ins for what they
import and do not need to build a model (image transforms, access to weights).  The models are built
on the meta device, which draws no weights.  The file keeps facts (names and shapes) and no code.
"""

import json
import sys
import tempfile
import types
import zipfile
from pathlib import Path

import torch

TARGET = Path(__file__).parents[1] / "tests" / "torchvision_shapes.json"
NEEDED = ("models/_api.py", "models/_meta.py", "models/_utils.py", "models/resnet.py")
NEEDED += ("models/vgg.py",)


class Anything:
    """Stands in for whatever is imported and, when a model is built, not used."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.arguments = args, kwargs


def unpack(wheel: Path, folder: Path) -> str:
    """Put the models' files into ``folder``, in packages that are otherwise empty."""
    with zipfile.ZipFile(wheel) as archive:
        for name in NEEDED:
            archive.extract(f"torchvision/{name}", folder)
    for package in ("", "models", "transforms"):
        (folder / "torchvision" / package).mkdir(exist_ok=True)
        (folder / "torchvision" / package / "__init__.py").touch()
    return wheel.name.split("-")[1]


def stand_in(name: str, **contents: object) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(contents)
    sys.modules[name] = module


def main(wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        version = unpack(wheel, Path(folder))
        sys.path.insert(0, folder)
        stand_in("torchvision._utils", StrEnum=Anything)
        stand_in("torchvision._internally_replaced_utils", load_state_dict_from_url=Anything)
        stand_in("torchvision.transforms._presets", ImageClassification=Anything)
        stand_in("torchvision.utils", _log_api_usage_once=lambda _: None)
        from torchvision.models import resnet, vgg

        with torch.device("meta"):
            modules = {"vgg11": vgg.vgg11(), "resnet18": resnet.resnet18()}
    shapes = {m: {n: list(t.shape) for n, t in v.state_dict().items()} for m, v in modules.items()}
    made = {"torchvision": version, "made_by": f"tools/{Path(__file__).name}", "models": shapes}
    lines = json.dumps(made, indent=1).replace("[\n", "[")
    TARGET.write_text(compact(lines) + "\n")


def compact(text: str) -> str:
    """A shape on one line."""
    out: list[str] = []
    for line in text.split("\n"):
        inside = bool(out) and "[" in out[-1] and "]" not in out[-1]
        out = [*out[:-1], out[-1] + line.strip()] if inside else [*out, line]
    return "\n".join(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
