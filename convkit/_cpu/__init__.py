"""Ways to compute a convolution on the CPU."""

try:
    from . import _engine as _engine
except ImportError as error:
    raise ImportError(
        "convkit's compiled part cannot be imported. If this is its source folder, build it there with "
        "'pip install -e .', or leave the folder so that an installed convkit is found."
    ) from error
