"""PyTorch: torch.conv2d, and aten.convolution_backward asked for one gradient, in either memory format."""

import torch
from torch.nn import functional


class Peer:
    """NCHW tensors, contiguous or channels-last."""

    version = torch.__version__

    def __init__(self, threads, setting):
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.memory_format = getattr(torch, setting)

    def _tensor(self, array, axes, dtype):
        tensor = torch.from_numpy(array)
        if dtype == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        return tensor.permute(axes).contiguous(memory_format=self.memory_format)

    def prepare(self, job):
        """Uneven padding is a step of its own, as PyTorch's users write it."""
        job.refuse_int8()
        x, w, dy = job.arrays()
        x, dy = (self._tensor(array, (0, 3, 1, 2), job.dtype) for array in (x, dy))
        w = self._tensor(w, (3, 2, 0, 1), job.dtype)
        (top, bottom), (left, right) = job.pads
        around = None if job.even_pads else (left, right, top, bottom)
        pads = (top, left) if job.even_pads else (0, 0)

        def padded():
            return functional.pad(x, around) if around else x

        if job.op == "conv2d":
            return lambda: torch.conv2d(padded(), w, None, job.strides, pads, job.dilations, job.groups)
        wanted = [job.op == "conv2d_backprop_input", job.op == "conv2d_backprop_filter", False]

        def backward(image):
            return torch.ops.aten.convolution_backward(
                dy, image, w, None, job.strides, pads, job.dilations, False, (0, 0), job.groups, wanted
            )

        if job.op == "conv2d_backprop_filter":
            return lambda: backward(padded())[1]
        if not around:
            return lambda: backward(x)[0]
        image = padded()
        _, height, width, _ = job.x_shape
        return lambda: backward(image)[0][:, :, top : top + height, left : left + width].contiguous(
            memory_format=self.memory_format
        )

    def result(self, value, job):
        """Return float32 for halves, which is exact."""
        value = value.permute((2, 3, 1, 0) if job.op == "conv2d_backprop_filter" else (0, 2, 3, 1))
        return (value if job.dtype == "float64" else value.float()).numpy()
