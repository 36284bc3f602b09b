"""People's own files: folders of images by class, and ``.npz``."""

from pathlib import Path

import numpy as np

from gcfed.data.datasets.arrays import Collected, as_array, from_arrays
from gcfed.data.datasets.images import ColorMode, decode_all, header
from gcfed.errors import InputError

_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")


def folder_of_images(path: Path, size: int = 0) -> Collected:
    """Images in one folder a class, named like it; all are resized to ``size`` if it is given."""
    if not path.is_dir():
        raise InputError(f"{path} is not a folder of images by class")
    names = tuple(sorted(p.name for p in path.iterdir() if p.is_dir() and p.name[0] != "."))
    labels = {
        str(file): name
        for name in names
        for file in sorted((path / name).rglob("*"))
        if file.suffix.lower() in _PICTURES
    }
    if not labels:
        raise InputError(f"{path} holds no images in folders named like their classes")
    headers = [header(Path(file)) for file in labels]
    mode: ColorMode = "L" if all(h.mode == "L" for h in headers) else "RGB"
    target = (size, size) if size else headers[0].size
    x = decode_all(
        list(labels), lambda name: Path(name).read_bytes(), target, mode, resize=size > 0
    )
    return Collected(x, np.array(list(labels.values())), names)


def arrays_of_npz(path: Path) -> tuple[Collected, Collected | None]:
    """Train and test examples of an ``.npz``: x_train, y_train, x_test and y_test; or x and y.

    In the second case test examples are still to be drawn, and ``client`` may say who holds which.
    """
    arrays = _load(path)
    if {"x_train", "y_train", "x_test", "y_test"} <= arrays.keys():
        train, test = (
            from_arrays((arrays[f"x_{s}"], arrays[f"y_{s}"]), f"{path}: {s}")
            for s in ("train", "test")
        )
        return train, test
    if {"x", "y"} <= arrays.keys():
        found = from_arrays((arrays["x"], arrays["y"]), str(path))
        return found._replace(client=_clients(arrays.get("client"), str(path))), None
    held = ", ".join(arrays) or "nothing"
    raise InputError(f"{path} holds {held}; not x_train, y_train, x_test and y_test, nor x and y")


def _clients(client: np.ndarray | None, where: str) -> np.ndarray | None:
    """Who holds each example: one number or word of each."""
    if client is None:
        return None
    if as_array(client, f"{where}: client").ndim != 1:
        raise InputError(f"{where}: client has one axis; not the shape {list(client.shape)}")
    if client.dtype.kind == "f" and not np.isfinite(client).all():
        bad = int(np.argmin(np.isfinite(client)))
        raise InputError(f"{where}: the client of example {bad} is not a finite number")
    return client


def _load(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz``; one that holds pickled objects is refused."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except Exception as error:  # numpy lets through what zipfile, zlib and its own parser raise
        raise InputError(f"{path} cannot be read as an .npz: {error}") from None
