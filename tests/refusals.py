"""What every refusal has in common: its type, the operation in front, and a sentence that names what is wrong."""

from contextlib import contextmanager

import pytest

from convkit import ConvkitError


@contextmanager
def refused(error, *words, op="conv2d"):
    """Expects `error`, with a message that starts with `op` and holds every one of `words` (in any case)."""
    with pytest.raises(error) as caught:
        yield
    message = str(caught.value)
    assert isinstance(caught.value, ConvkitError)
    assert message.startswith(f"{op}: "), message
    assert len(message) > 20, message
    for word in words:
        assert word.lower() in message.lower(), f"{word!r} is not in: {message}"
