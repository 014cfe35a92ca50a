"""How often the host waits for the device: every call that hands a tensor's contents to Python, or whose shape depends on them.

It is counted on the CPU, where nothing has to be waited for, by the names of the calls. On an accelerator each of them stops
the host until the device is done with all that it was given.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEPENDS_ON_DATA = {
    "_local_scalar_dense",  # item, bool, int, float, an index that is a tensor of one number
    "is_nonzero", "equal", "allclose", "nonzero", "argwhere", "masked_select", "bincount",
    "_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive",
}  # fmt: skip
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
READ_WHOLE = {torch.Tensor.tolist: "tolist", torch.Tensor.numpy: "numpy", torch.Tensor.cpu: "cpu"}


class ByOperation(TorchDispatchMode):
    """Notes operations whose result the host must see before it can go on."""

    def __init__(self, waits: Counter) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in DEPENDS_ON_DATA or (name == "repeat_interleave" and func._overloadname == "Tensor"):
            self.waits[name] += 1
        if name in INDEXED and any(at is not None and at.dtype in (torch.bool, torch.uint8) for at in args[1]):
            self.waits["index by a mask"] += 1
        return func(*args, **(kwargs or {}))


class ByCall(TorchFunctionMode):
    """Notes whole tensors that are read, which no operation shows where host and device are one."""

    def __init__(self, waits: Counter) -> None:
        super().__init__()
        self.waits = waits

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in READ_WHOLE:
            self.waits[READ_WHOLE[func]] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def host_waits():
    """Counts of what the host waits for while the block runs."""
    waits = Counter()
    with ByOperation(waits), ByCall(waits):
        yield waits
