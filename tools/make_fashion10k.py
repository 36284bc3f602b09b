"""Draw the class-balanced part of Fashion-MNIST that gcfed ships, the same bytes every time.

    apt-get install dataset-fashion-mnist
    python tools/make_fashion10k.py

The four official files are checked by their contents, 1,000 train and 200 test images of every
class are drawn by a fixed seed, and what is written is checked against `SHA256`.  Images keep their
official order.  The file is an ordinary ``.npz`` whose members are compressed by LZMA (4.5 MB
instead of deflate's 5.2); `numpy.load` reads it.
"""

import argparse
import gzip
import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np

SOURCE = Path("/usr/share/datasets/fashion-mnist")
TARGET = Path(__file__).parents[1] / "src/gcfed/data/datasets/embedded/fashion10k.npz"
SEED = 2017
PER_CLASS = {"train": 1000, "test": 200}
SHA256 = "ec7fdd49373febd48308bcecc070f929436f7eabefc0b4011258f460be3e5620"
MD5 = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}


def contents(name: str) -> bytes:
    """An official file, decompressed: Debian compresses it anew, so its own md5 says nothing."""
    blob = gzip.decompress((SOURCE / f"{name}.gz").read_bytes())
    digest = hashlib.md5(blob).hexdigest()
    if digest != MD5[name]:
        raise SystemExit(f"{name}: md5 {digest}, expected {MD5[name]}")
    return blob


def draw(split: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """So many examples of every class, in their official order."""
    stem = {"train": "train", "test": "t10k"}[split]
    x = np.frombuffer(contents(f"{stem}-images-idx3-ubyte")[16:], np.uint8).reshape(-1, 28, 28)
    y = np.frombuffer(contents(f"{stem}-labels-idx1-ubyte")[8:], np.uint8)
    chosen = [
        rng.choice(np.flatnonzero(y == c), PER_CLASS[split], replace=False) for c in range(10)
    ]
    index = np.sort(np.concatenate(chosen))
    return x[index, None], y[index]


def pack(arrays: dict[str, np.ndarray]) -> bytes:
    """An ``.npz`` that holds no time of day."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_LZMA) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.ascontiguousarray(array), version=(1, 0))
            info = zipfile.ZipInfo(f"{name}.npy", (2017, 8, 25, 0, 0, 0))
            info.compress_type, info.create_system = zipfile.ZIP_LZMA, 3
            archive.writestr(info, member.getvalue())
    return out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", type=Path, default=TARGET)
    target = parser.parse_args().target
    rng = np.random.default_rng(SEED)
    arrays = {}
    for split in ("train", "test"):
        arrays[f"x_{split}"], arrays[f"y_{split}"] = draw(split, rng)
    blob = pack(arrays)
    digest = hashlib.sha256(blob).hexdigest()
    target.write_bytes(blob)
    print(f"{target}: {len(blob):,} bytes, sha256 {digest}")
    if digest != SHA256:
        raise SystemExit(f"expected sha256 {SHA256}")


if __name__ == "__main__":
    main()
