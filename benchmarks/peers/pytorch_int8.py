"""PyTorch's quantised convolution with ReLU, its filter packed beforehand, by one of its engines."""

import numpy as np
import torch

from .job import UnsupportedError, int8_terms


class Peer:
    """Channels-last uint8 tensors with scale 1, filters with a scale each, as PyTorch's engines for x86 want them."""

    version = torch.__version__

    def __init__(self, threads, setting):
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        torch.backends.quantized.engine = setting

    def prepare(self, job):
        """Return the operation; the result's scale is 1, the filters' are all there is."""
        if job.op != "fused_conv2d":
            raise UnsupportedError("this contestant is for int8 alone")
        if not job.even_pads:
            raise UnsupportedError("PyTorch pads both sides alike")
        x, w, dy = job.arrays()
        scale, bias = int8_terms(dy)
        image = torch.from_numpy(x.astype(np.uint8)).permute(0, 3, 1, 2)
        image = torch._make_per_tensor_quantized_tensor(image.contiguous(memory_format=torch.channels_last), 1.0, 0)
        weights = torch.from_numpy(w.transpose(3, 2, 0, 1).copy())
        zeros = torch.zeros(len(scale), dtype=torch.long)
        weights = torch._make_per_channel_quantized_tensor(weights, torch.from_numpy(scale).double(), zeros, 0)
        (top, _), (left, _) = job.pads
        packed = torch.ops.quantized.conv2d_prepack(
            weights, torch.from_numpy(bias), job.strides, (top, left), job.dilations, job.groups
        )
        return lambda: torch.ops.quantized.conv2d_relu(image, packed, 1.0, 0)

    def result(self, value, job):
        """Return the result in NHWC order; uint8 goes further than int8."""
        return np.minimum(value.int_repr().permute(0, 2, 3, 1).numpy(), 127)
