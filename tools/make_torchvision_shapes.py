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
NEEDED = ["_utils", "models/_api", "models/_meta", "models/_utils", "models/resnet", "models/vgg"]
UNUSED = {
    "_internally_replaced_utils": "load_state_dict_from_url",
    "transforms._presets": "ImageClassification",
    "utils": "_log_api_usage_once",
}


def unpack(wheel: Path, folder: str) -> None:
    """Make the models' files importable, in packages that are otherwise empty."""
    with zipfile.ZipFile(wheel) as archive:
        for name in NEEDED:
            archive.extract(f"torchvision/{name}.py", folder)
    for package in ("torchvision", "torchvision/models", "torchvision/transforms"):
        Path(folder, package).mkdir(exist_ok=True)
        Path(folder, package, "__init__.py").touch()
    for name, content in UNUSED.items():
        module = types.ModuleType(f"torchvision.{name}")
        setattr(module, content, lambda *_, **__: None)
        sys.modules[module.__name__] = module
    sys.path.insert(0, folder)


def models() -> dict[str, torch.nn.Module]:
    from torchvision.models import resnet, vgg

    with torch.device("meta"):
        return {"resnet18": resnet.resnet18(), "vgg11": vgg.vgg11()}


def main(wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        unpack(wheel, folder)
        entries = [
            f'  "{name}": {{\n'
            + ",\n".join(f'    "{n}": {list(v.shape)}' for n, v in model.state_dict().items())
            + "\n  }"
            for name, model in models().items()
        ]
    header = f'  "made by tools/{Path(__file__).name} from": "{wheel.name}"'
    text = "{\n" + ",\n".join([header, *entries]) + "\n}\n"
    json.loads(text)
    TARGET.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
