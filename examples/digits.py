"""Train a small convolutional network on handwritten digits with nothing but NumPy and convkit.

scikit-learn supplies the images (1797 of them, 8x8 pixels) and matplotlib draws the picture; everything that learns is
on this page. The trained network is then rounded to int8, and reads the test images once more. Every sum of products
goes through convkit, whose results do not depend on the number of threads, so two runs with one seed learn the same
filters, to the last bit, on one thread or on sixteen.
"""

import argparse
import hashlib
import sys
import time
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import convkit
from convkit.quantize import activation_scale, quantize, quantize_filter

CLASSES = 10
TEST_IMAGES_PER_DIGIT = 36
EPOCHS, REQUIRED_ACCURACY = 60, 0.98
QUICK_EPOCHS, QUICK_REQUIRED_ACCURACY = 4, 0.90
HARDEST_SHOWN = 6
PRECISIONS = ("high", "default", "fast")
# Images that the scales of the activations are taken from, and by how many the rounded network may be off.
CALIBRATION_IMAGES, MOST_OTHERS = 256, 2
TIMED_IMAGES, TIMED_RUNS = 256, 9


class Conv:
    """A convolution and a bias. Images are NHWC (batch, height, width, channels), filters HWIO.

    A dense layer is the same thing: a filter as large as the image, under VALID padding.
    """

    def __init__(self, rng, filter_shape, strides=1, padding="SAME"):
        fan_in = np.prod(filter_shape[:3])
        self.filter = rng.normal(0, np.sqrt(2 / fan_in), filter_shape).astype(np.float32)
        self.bias = np.zeros(filter_shape[3], np.float32)
        self.filter_gradient = np.zeros_like(self.filter)
        self.bias_gradient = np.zeros_like(self.bias)
        self.geometry = {"strides": strides, "padding": padding}

    def forward(self, x):
        self.x = x  # the filter's gradient needs it
        y = convkit.conv2d(x, self.filter, **self.geometry)
        y += self.bias
        return y

    def backward(self, dy):
        """Fill in the gradients of filter and bias from that of the layer's output."""
        convkit.conv2d_backprop_filter(self.x, self.filter.shape, dy, out=self.filter_gradient, **self.geometry)
        np.sum(dy, axis=(0, 1, 2), out=self.bias_gradient)

    def input_gradient(self, dy):
        return convkit.conv2d_backprop_input(self.x.shape, self.filter, dy, **self.geometry)

    def parameters(self):
        """Pairs of a parameter and its gradient; both are updated in place."""
        return [(self.filter, self.filter_gradient), (self.bias, self.bias_gradient)]


class Network:
    """Three convolutions with ReLU (8x8, 8x8, then 4x4 pixels) and a dense layer with one output per digit."""

    def __init__(self, rng):
        self.hidden = [Conv(rng, (5, 5, 1, 16)), Conv(rng, (3, 3, 16, 32)), Conv(rng, (3, 3, 32, 64), strides=2)]
        self.dense = Conv(rng, (4, 4, 64, CLASSES), padding="VALID")

    def forward(self, images):
        """The logits, of shape (batch, 10)."""
        y = images
        self.outputs = []
        for layer in self.hidden:
            y = np.maximum(layer.forward(y), 0)
            self.outputs.append(y)
        return self.dense.forward(y)[:, 0, 0, :]

    def backward(self, dlogits):
        layer, dy = self.dense, dlogits[:, np.newaxis, np.newaxis, :]
        layer.backward(dy)
        for below, output in zip(reversed(self.hidden), reversed(self.outputs), strict=True):
            dy = layer.input_gradient(dy)
            dy *= output > 0  # through the ReLU
            layer = below
            layer.backward(dy)  # the images themselves need no gradient, so the loop ends here

    def parameters(self):
        return [pair for layer in [*self.hidden, self.dense] for pair in layer.parameters()]

    def fingerprint(self):
        """A few hexadecimal digits that change when any bit of any parameter does."""
        return hashlib.sha256(b"".join(value.tobytes() for value, _ in self.parameters())).hexdigest()[:16]


class Int8Layer:
    """A layer with an int8 filter: `convkit.fused_conv2d` multiplies, scales, adds the bias and rounds in one call.

    Images and what comes after a ReLU are never negative, and uint8; the last layer's outputs stay float32.
    """

    def __init__(self, layer, x_scale, y_scale=None):
        integers, scales = quantize_filter(layer.filter)
        self.x_scale, self.y_scale = x_scale, y_scale
        step = 1 if y_scale is None else y_scale
        self.conv_scale = (scales * (x_scale / step)).astype(np.float32)
        self.bias = (layer.bias / step).astype(np.float32)
        self.filter = convkit.pack_filter(integers, op="fused_conv2d", **layer.geometry)
        self.keywords = {
            "activation": None if y_scale is None else "relu",
            "out_dtype": np.float32 if y_scale is None else np.uint8,
            **layer.geometry,
        }

    def forward(self, x):
        return convkit.fused_conv2d(x, self.filter, self.bias, conv_scale=self.conv_scale, **self.keywords)

    def nbytes(self):
        return self.filter.filter.nbytes + self.conv_scale.nbytes + self.bias.nbytes


class Int8Network:
    """A trained network with int8 filters and uint8 activations, whose scales come from a few training images."""

    def __init__(self, network, images):
        network.forward(images)
        scales = [activation_scale(values, dtype="uint8") for values in (images, *network.outputs)]
        layers = zip([*network.hidden, network.dense], scales, [*scales[1:], None], strict=True)
        self.layers = [Int8Layer(*layer) for layer in layers]

    def forward(self, images):
        """The logits, of shape (batch, 10)."""
        y = quantize(images, self.layers[0].x_scale, dtype="uint8")
        for layer in self.layers:
            y = layer.forward(y)
        return y[:, 0, 0, :]

    def nbytes(self):
        return sum(layer.nbytes() for layer in self.layers)


def fastest(function):
    """The least of some times that a call takes, in milliseconds."""
    times = []
    for _ in range(TIMED_RUNS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def time_convolutions(network, int8, images):
    """Milliseconds for the convolutions of both networks, each layer on what the one before has made of the images."""
    floats = integers = 0.0
    x, q = images, quantize(images, int8.layers[0].x_scale, dtype="uint8")
    with convkit.options(precision="high"):
        for layer, int8_layer in zip([*network.hidden, network.dense], int8.layers, strict=True):
            filter = convkit.pack_filter(layer.filter, op="conv2d", **layer.geometry)
            floats += fastest(lambda x=x, filter=filter, layer=layer: convkit.conv2d(x, filter, **layer.geometry))
            integers += fastest(lambda q=q, layer=int8_layer: layer.forward(q))
            x, q = np.maximum(layer.forward(x), 0), int8_layer.forward(q)
    return floats, integers


def compare_int8(network, calibration, images, labels, correct):
    """Print what rounding to int8 costs and saves; tell whether the images read are as many but for a few."""
    int8 = Int8Network(network, calibration)
    int8_correct = np.count_nonzero(int8.forward(images).argmax(axis=1) == labels)
    floats, integers = time_convolutions(network, int8, images[:TIMED_IMAGES])
    float_bytes = sum(value.nbytes for value, _ in network.parameters())
    accuracies = (count / len(labels) for count in (correct, int8_correct))
    print("float32 accuracy {:.2%}, int8 accuracy {:.2%}".format(*accuracies), end="")
    print(f" ({abs(correct - int8_correct)} of {len(labels)} images apart)")
    print(f"float32 weights {float_bytes} bytes, int8 weights {int8.nbytes()} bytes")
    print(f"convolutions of {TIMED_IMAGES} images: float32 {floats:.2f} ms, int8 {integers:.2f} ms")
    return abs(correct - int8_correct) <= MOST_OTHERS


class Momentum:
    """Plain stochastic gradient descent with momentum."""

    def __init__(self, parameters, momentum=0.9):
        self.parameters, self.momentum = parameters, momentum
        self.velocities = [np.zeros_like(value) for value, _ in parameters]

    def step(self, rate):
        for (value, gradient), velocity in zip(self.parameters, self.velocities, strict=True):
            velocity *= self.momentum
            velocity -= rate * gradient
            value += velocity


def cross_entropy(logits, labels):
    """Mean softmax cross-entropy, and its gradient with respect to the logits."""
    rows = np.arange(len(labels))
    shifted = logits - logits.max(axis=1, keepdims=True)  # so that exp cannot overflow
    exponentials = np.exp(shifted)
    sums = exponentials.sum(axis=1)
    loss = (np.log(sums) - shifted[rows, labels]).mean()
    gradient = exponentials / sums[:, np.newaxis]
    gradient[rows, labels] -= 1
    return float(loss), gradient / len(labels)


def load_split():
    """Training and test images with their labels; 36 images of every digit are kept for the test, always the same."""
    digits = load_digits()
    images = (digits.images[..., np.newaxis] / 16).astype(np.float32)
    order = np.random.default_rng(1).permutation(len(images))
    by_digit = [order[digits.target[order] == digit] for digit in range(CLASSES)]
    test = np.concatenate([of_one_digit[:TEST_IMAGES_PER_DIGIT] for of_one_digit in by_digit])
    train = np.concatenate([of_one_digit[TEST_IMAGES_PER_DIGIT:] for of_one_digit in by_digit])
    return (images[train], digits.target[train]), (images[test], digits.target[test])


def shift(images, rng):
    """Move every image by -1, 0 or 1 pixel each way: still the same digit, and one more image to learn from."""
    count, size = images.shape[:2]
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    top, left = rng.integers(0, 3, (2, count, 1))
    rows, columns = top + np.arange(size), left + np.arange(size)
    return padded[np.arange(count)[:, np.newaxis, np.newaxis], rows[:, :, np.newaxis], columns[:, np.newaxis, :]]


def train(network, images, labels, epochs, rng, batch=64, first_rate=0.1):
    """Train in place, with one printed line per epoch; return the mean loss of every epoch."""
    optimizer = Momentum(network.parameters())
    losses = []
    for epoch in range(epochs):
        start = time.perf_counter()
        order = rng.permutation(len(images))
        loss_sum, correct = 0.0, 0
        for first in range(0, len(order), batch):
            chosen = order[first : first + batch]
            logits = network.forward(shift(images[chosen], rng))
            loss, dlogits = cross_entropy(logits, labels[chosen])
            network.backward(dlogits)
            progress = (epoch + first / len(order)) / epochs
            optimizer.step(first_rate * (1 + float(np.cos(np.pi * progress))) / 2)  # falls to 0 along a half cosine
            loss_sum += loss * len(chosen)
            correct += np.count_nonzero(logits.argmax(axis=1) == labels[chosen])
        losses.append(loss_sum / len(order))
        line = f"epoch {epoch + 1:3}/{epochs}   loss {losses[-1]:.4f}   train accuracy {correct / len(order):7.2%}"
        print(f"{line}   {time.perf_counter() - start:.2f} s", flush=True)
    return losses


def draw(path, network, losses, images, labels, logits):
    """Write a picture with the first layer's filters, the loss curve and the digits that were hardest to read."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)  # inches
    upper, lower = figure.subfigures(2, 1, height_ratios=[1.6, 1])
    left, right = upper.subfigures(1, 2, width_ratios=[1, 1.25])

    filters = network.hidden[0].filter[:, :, 0, :]
    limit = float(abs(filters).max())
    left.suptitle("What the first layer learned: 16 filters of 5x5")
    grid = left.subplots(4, 4, subplot_kw={"xticks": [], "yticks": []})
    for index, axes in enumerate(grid.flat):
        drawn = axes.imshow(filters[:, :, index], cmap="RdBu_r", vmin=-limit, vmax=limit)
    left.colorbar(drawn, ax=grid, shrink=0.9, pad=0.03)

    right.suptitle("How it learned")
    axes = right.subplots()
    axes.semilogy(range(1, len(losses) + 1), losses, color="tab:blue", linewidth=2)
    axes.set(xlabel="epoch", ylabel="training loss (mean cross-entropy)")
    axes.grid(which="both", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)

    predicted = logits.argmax(axis=1)
    others = np.where(labels[:, np.newaxis] == np.arange(CLASSES), -np.inf, logits)
    lead = logits[np.arange(len(labels)), labels] - others.max(axis=1)  # of the true digit; negative where misread
    misread = np.count_nonzero(predicted != labels)
    lower.suptitle(f"The hardest of the {len(labels)} test images ({misread} misread, in red)")
    panels = lower.subplots(1, HARDEST_SHOWN, subplot_kw={"xticks": [], "yticks": []})
    for axes, index in zip(panels, np.argsort(lead, kind="stable"), strict=False):
        color = "black" if predicted[index] == labels[index] else "tab:red"
        axes.imshow(images[index, :, :, 0], cmap="gray_r", vmin=0, vmax=1)
        axes.set_title(f"read {predicted[index]}, is {labels[index]}", color=color, fontsize=11)
        axes.spines[:].set_color(color)

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def positive(text):
    if int(text) < 1:
        raise ValueError
    return int(text)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description="Train a small convolutional network on scikit-learn's handwritten digits with NumPy and convkit, "
        "and draw what it learned.",
        epilog=f"Exit status: 0 if the test accuracy reaches {REQUIRED_ACCURACY:.0%} "
        f"({QUICK_REQUIRED_ACCURACY:.0%} with --quick) and int8 comes within {MOST_OTHERS} images of it, otherwise 1.",
    )
    add = parser.add_argument
    add("--epochs", type=positive, default=EPOCHS, help="passes over the training images (default: %(default)s)")
    add("--seed", type=int, default=0, help="of filters, order and shifts at the start (default: %(default)s)")
    add("--threads", type=positive, help="threads per call (default: convkit's choice); the result is the same")
    add(
        "--precision",
        choices=PRECISIONS,
        default="default",
        help='"high" does without fast algorithms that round more; the accuracy is the same (default: %(default)s)',
    )
    add("--output", type=Path, default=Path("demo_output/digits.png"), help="the picture (default: %(default)s)")
    add("--quick", action="store_true", help=f"only see whether it works, in {QUICK_EPOCHS} epochs")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    start = time.perf_counter()
    convkit.set_options(num_threads=arguments.threads, precision=arguments.precision)
    (images, labels), (test_images, test_labels) = load_split()
    print(f"convkit {convkit.__version__}: {len(images)} images to learn from, {len(test_images)} for the test")

    rng = np.random.default_rng(arguments.seed)
    network = Network(rng)
    losses = train(network, images, labels, QUICK_EPOCHS if arguments.quick else arguments.epochs, rng)

    logits = network.forward(test_images)
    correct = np.count_nonzero(logits.argmax(axis=1) == test_labels)
    accuracy = correct / len(test_labels)
    print(f"test accuracy {accuracy:.2%} ({correct} of {len(test_labels)} images)")
    print(f"learned parameters {network.fingerprint()} (the same for any number of threads)")
    as_good = compare_int8(network, images[:CALIBRATION_IMAGES], test_images, test_labels, correct)
    draw(arguments.output, network, losses, test_images, test_labels, logits)
    print(f"picture {arguments.output}")
    print(f"total time {time.perf_counter() - start:.1f} s")

    required = QUICK_REQUIRED_ACCURACY if arguments.quick else REQUIRED_ACCURACY
    if accuracy < required:
        print(f"the test accuracy is below {required:.0%}", file=sys.stderr)
    if not as_good:
        print(f"rounded to int8, the network is more than {MOST_OTHERS} images off", file=sys.stderr)
    return int(accuracy < required or not as_good)


if __name__ == "__main__":
    sys.exit(main())
