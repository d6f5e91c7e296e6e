"""PyTorch on the same card, as its users call it."""

from collections.abc import Callable

import numpy as np
from problems import Problem


class Torch:
    """`torch.conv2d` and its gradients, on channels-last tensors of the default stream."""

    def __init__(self, device: str = "cuda") -> None:
        import torch

        self.torch, self.device = torch, device
        torch.backends.cudnn.benchmark = True
        # As convkit by default: float32 is float32.
        torch.backends.cudnn.allow_tf32 = False
        torch.set_grad_enabled(False)
        self.version = f"{torch.__version__}, cuDNN {torch.backends.cudnn.version()}"

    def _tensor(self, array: np.ndarray, axes: tuple[int, ...], dtype: str) -> object:
        tensor = self.torch.from_numpy(array).to(self.device, getattr(self.torch, dtype))
        return tensor.permute(axes).contiguous(memory_format=self.torch.channels_last)

    def prepare(self, op: str, problem: Problem, arrays: tuple[np.ndarray, ...]) -> Callable[[], object]:
        """Return the operation as a function without arguments, given float32 arrays in NHWC and HWIO."""
        x, w, dy = arrays
        x, dy = (self._tensor(array, (0, 3, 1, 2), problem.dtype) for array in (x, dy))
        w = self._tensor(w, (3, 2, 0, 1), problem.dtype)
        # The layers of ResNet-50 are padded evenly.
        pads = (0, 0) if isinstance(problem.pads, str) else tuple(before for before, _ in problem.pads)
        if op == "conv2d":
            return lambda: self.torch.conv2d(x, w, None, problem.s, pads, problem.d, problem.g)
        wanted = [op == "conv2d_backprop_input", op == "conv2d_backprop_filter", False]
        place = wanted.index(True)

        def backward() -> object:
            return self.torch.ops.aten.convolution_backward(
                dy, x, w, None, problem.s, pads, problem.d, False, (0, 0), problem.g, wanted
            )[place]

        return backward

    def result(self, op: str, value: object) -> np.ndarray:
        """Return a result, or a part of one, in NHWC or HWIO, as float64."""
        axes = (2, 3, 1, 0) if op == "conv2d_backprop_filter" else (0, 2, 3, 1)
        return value.permute(axes).double().cpu().numpy()


def find() -> Torch | str:
    """Return PyTorch, or a sentence why there is none to compare with."""
    try:
        rival = Torch()
    except ImportError:
        return "PyTorch is not installed"
    return rival if rival.torch.cuda.is_available() else "this PyTorch has no CUDA"
