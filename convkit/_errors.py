"""The exceptions that convkit raises; every message names the operation, the argument, the value and the rule."""


class ConvkitError(Exception):
    """Base of every error that convkit raises itself."""


class ArgumentError(ConvkitError, ValueError):
    """An argument has a value that it cannot have."""


class ArgumentTypeError(ConvkitError, TypeError):
    """An argument is of a type that it cannot have, or its name is unknown."""


class ShapeError(ArgumentError):
    """Shapes, strides, padding, dilations or groups do not go together."""


class DTypeError(ArgumentTypeError):
    """A dtype is not supported here, or the dtypes do not go together."""


class UnsupportedError(ConvkitError, NotImplementedError):
    """A call that is well-formed, but that no implementation, or not the one asked for, can serve."""


class WorkspaceError(ConvkitError, MemoryError):
    """The memory limit in force, or the memory there is, cannot hold what the call needs."""


class BackendError(ConvkitError, RuntimeError):
    """A library that convkit calls has failed."""
