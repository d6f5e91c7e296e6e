"""The version, as the installed distribution tells."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("convkit-kernels")
except PackageNotFoundError:  # Imported from a source tree that was never installed.
    __version__ = "0.0.0"
