"""Kernels for GPUs on the CPU."""

from .shim import ShimError, ShimFunction, ShimModule, sanitized

__all__ = ["ShimError", "ShimFunction", "ShimModule", "sanitized"]
