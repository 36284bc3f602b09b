"""The start of CUDA, which takes half a second or more, beside the import of torch."""

import ctypes
import re
from importlib.metadata import PackageNotFoundError, version
from threading import Thread


def start_cuda(device: str) -> Thread | None:
    """Have a thread make the context that torch will use on a device such as ``"cuda:1"``.

    ``"auto"`` is the first GPU, where there is one and a torch that can use it.  What goes wrong is
    left to torch, which then says so.
    """
    named = re.fullmatch(r"auto|cuda(?::(\d+))?", device)
    if named is None or _is_without_cuda():
        return None
    thread = Thread(target=_make_context, args=(int(named[1] or 0),), daemon=True)
    thread.start()
    return thread


def _is_without_cuda() -> bool:
    try:
        return version("torch").endswith("+cpu")
    except PackageNotFoundError:
        return True


def _make_context(number: int) -> None:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:  # there is no driver
        return
    if cuda.cuInit(0) == 0:
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), number)
