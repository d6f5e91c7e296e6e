"""Correlations by way of double-precision spectra, each result checked against the error that transforms can make.

The rounding error of a transform spreads evenly over its tile: it is small beside the tile's norm, not beside each
element.  So every element is checked.  With E a bound of the error of any element of the tile, and S the same sum over
absolute values, the error contract holds wherever E <= TOLERANCE * S; and S is at least the result's absolute value.
What fails that test is looked at again, more dearly: is the window all zeros, is S large enough after all, and at last
the sum is computed tap by tap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Real = npt.NDArray[np.float64]
Spectrum = npt.NDArray[np.complex128]
Mask = npt.NDArray[np.bool_]
Pair = tuple[int, int]

EPSILON = 2.0**-52
# Of S: with the half epsilon of float32 that the last rounding takes, the contract's c is 2.
TOLERANCE = 1.5 * 2.0**-23
# Elements of a tile that are computed one by one, at some 10 microseconds each, rather than looked at further.
FEW = 48
# Whole numbers are recovered by rounding where the error is below this.
LEAST_GAP = 0.25


class Transform:
    """Real two-dimensional transforms of one size; every array is given by the caller."""

    def __init__(self, size: Pair) -> None:
        self.size = size
        self.bins = (size[0], size[1] // 2 + 1)
        # A bound of the relative error of one transform in the L2 norm: Higham, Accuracy and Stability of Numerical
        # Algorithms, theorem 24.2, has 3.4 epsilon for each of log2(n) levels.
        self.error = 4 * EPSILON * math.log2(size[0] * size[1])

    def forward(self, real: Real, out: Spectrum) -> None:
        """Transform rows of the full width; those below them count as zeros."""
        rows = len(real)
        np.fft.rfft(real, self.size[1], out=out[:rows])
        out[rows:] = 0
        np.fft.fft(out, axis=0, out=out)

    def back(self, spectrum: Spectrum, out: Real) -> Real:
        """Return the first rows, as many as ``out`` has; the spectrum is lost."""
        np.fft.ifft(spectrum, axis=0, out=spectrum)
        return np.fft.irfft(spectrum[: len(out)], self.size[1], out=out)

    def norm(self, spectrum: Spectrum) -> float:
        """Return the L2 norm of the plane behind a spectrum, or a little more."""
        return math.sqrt(2 * _square(spectrum.view(np.float64)) / (self.size[0] * self.size[1]))


def _square(array: Real) -> float:
    """Return the sum of squares, in an order that no BLAS decides."""
    flat = array.reshape(-1)
    return float(np.einsum("i,i->", flat, flat))


def norm(array: Real) -> float:
    """Return the L2 norm; not finite if an element is not."""
    return math.sqrt(_square(array))


def is_whole(array: Real) -> bool:
    """Tell whether all elements are whole numbers."""
    return bool((np.rint(array) == array).all())


def blank_windows(patch: Real, taps: Pair) -> Mask:
    """Tell which windows of a (channels, height, width) patch hold nothing but zeros."""
    rows, columns = taps
    count = np.zeros((patch.shape[1] + 1, patch.shape[2] + 1), np.int32)
    count[1:, 1:] = (patch != 0).any(axis=0)
    np.cumsum(count, axis=0, out=count)
    np.cumsum(count, axis=1, out=count)
    upper = count[:-rows, columns:] - count[:-rows, :-columns]
    lower = count[rows:, columns:] - count[rows:, :-columns]
    blank: Mask = upper == lower
    return blank


def write(target: npt.NDArray[Any], sums: Real, where: Any = True, accumulate: bool = False) -> None:
    """Store sums, or add them to what there is, in float32, rounded to the target's dtype once more."""
    narrow = sums.astype(np.float32)
    if accumulate:
        narrow += target.astype(np.float32)
    np.copyto(target, narrow, casting="unsafe", where=where)


def doubtful(values: Real, error: Any) -> Mask:
    """Tell which elements, known up to ``error``, may be too small for it."""
    small: Mask = np.abs(values) < error / TOLERANCE + error
    return small


class Filters:
    """Some filters of one group, and their spectra, for patches of one size."""

    def __init__(self, transform: Transform, filters: npt.NDArray[Any]) -> None:
        """Take filters in the order height, width, channel, filter."""
        self.transform = transform
        self.taps: Pair = (filters.shape[0], filters.shape[1])
        self.values = filters.transpose(3, 2, 0, 1).astype(np.float64, order="C")
        self.norms = [norm(one) for one in self.values]
        self.whole = is_whole(self.values)
        count, channels = self.values.shape[:2]
        self.spectra = np.empty((count, channels, *transform.bins), np.complex128)
        for values, spectra in zip(self.values, self.spectra, strict=True):
            self._transform(values, spectra)
        self.error = transform.error + channels * EPSILON
        # Of each patch in turn; new memory for each would cost as much as a transform.
        self.patch_spectra = np.empty((channels, *transform.bins), np.complex128)
        self.product = np.empty(transform.bins, np.complex128)
        self.plane = np.empty((transform.size[0] - self.taps[0] + 1, transform.size[1]))

    def _transform(self, values: Real, out: Spectrum) -> None:
        for value, spectrum in zip(values, out, strict=True):
            self.transform.forward(value, spectrum)
            np.conjugate(spectrum, out=spectrum)

    def correlate(self, patch: Real, out: npt.NDArray[Any]) -> Iterator[int]:
        """Write the sums at the windows of a patch to ``out`` (height, width, filter); yield the filters left out."""
        window = Patch(self, patch)
        for k in range(len(self.values)):
            sums = window.correlate(k)
            if sums is None:
                yield k
            else:
                write(out[..., k], sums[: out.shape[0], : out.shape[1]])


class Patch:
    """One patch of an image against the filters."""

    def __init__(self, filters: Filters, values: Real) -> None:
        self.filters = filters
        self.values = values
        self.norm = norm(values)
        self.whole = filters.whole and is_whole(values)
        self.spectra = filters.patch_spectra
        if self.norm:
            self._transform(self.spectra, None)
        self.blank: Mask | None = None

    def _transform(self, out: Spectrum, of: np.ufunc | None) -> None:
        for value, spectrum in zip(self.values, out, strict=True):
            self.filters.transform.forward(of(value) if of else value, spectrum)

    def correlate(self, k: int) -> Real | None:
        """Return the sums at every window for one filter, or None if they have to be computed in another way."""
        scale = self.norm * self.filters.norms[k]
        if not math.isfinite(scale):
            return None
        if scale == 0:
            self.filters.plane[...] = 0
            return self.filters.plane
        sums, error = self._product(self.spectra, self.filters.spectra[k], scale)
        if self.whole and error < LEAST_GAP:
            return np.rint(sums, out=sums)
        again = doubtful(sums, error)
        count = np.count_nonzero(again)
        if count == 0:
            return sums
        if count > FEW:
            if self.blank is None:
                self.blank = blank_windows(self.values, self.filters.taps)
            sums[self.blank] = 0
            again &= ~self.blank
        if np.count_nonzero(again) > FEW:
            again &= ~self._large_enough(k, scale, error)
        places = np.flatnonzero(again)  # np.argwhere takes as long as a transform
        if len(places) > FEW:
            return None
        rows, columns = self.filters.taps
        for i, j in zip(*np.unravel_index(places, sums.shape), strict=True):
            window = self.values[:, i : i + rows, j : j + columns]
            sums[i, j] = np.einsum("chw,chw->", window, self.filters.values[k])
        return sums

    def _product(self, first: Spectrum, second: Spectrum, scale: float) -> tuple[Real, float]:
        """Return the sums that spectra stand for, and how far they may be off."""
        held, product = self.filters, self.filters.product
        if len(first) == 1:
            np.multiply(first[0], second[0], out=product)
        else:
            np.einsum("chw,chw->hw", first, second, out=product)
        error = held.error * (2 * scale + held.transform.norm(product))
        return held.transform.back(product, held.plane)[:, : held.transform.size[1] - held.taps[1] + 1], error

    def _large_enough(self, k: int, scale: float, error: float) -> Mask:
        """Tell where the sums of absolute values are large enough for an error."""
        sums = self.filters.plane.copy()
        pixels, taps = np.empty_like(self.spectra), np.empty_like(self.filters.spectra[k])
        self._transform(pixels, np.absolute)
        self.filters._transform(np.abs(self.filters.values[k]), taps)
        magnitudes, their_error = self._product(pixels, taps, scale)
        enough: Mask = magnitudes >= error / TOLERANCE + their_error
        self.filters.plane[...] = sums
        return enough


class TapSums:
    """For every channel and filter, the sums over pixels that each tap of a filter gradient is, as spectra."""

    def __init__(self, transform: Transform, channels: int, filters: int) -> None:
        self.transform = transform
        self.spectra = np.zeros((channels, filters, *transform.bins), np.complex128)
        self.scales = np.zeros((channels, filters))
        self.seconds = np.empty((filters, *transform.bins), np.complex128)
        self.first, self.product = np.empty((2, *transform.bins), np.complex128)
        self.whole = True
        self.tiles = 0

    def add(self, patch: Real, gradient: Real) -> None:
        """Add what a patch (channels first) gives with the block of an output gradient whose windows it holds."""
        self.whole = self.whole and is_whole(gradient) and is_whole(patch)
        self.tiles += 1
        self.scales += np.multiply.outer([norm(one) for one in patch], [norm(one) for one in gradient])
        for one, spectrum in zip(gradient, self.seconds, strict=True):
            self.transform.forward(one, spectrum)
            np.conjugate(spectrum, out=spectrum)
        for one, sums in zip(patch, self.spectra, strict=True):
            self.transform.forward(one, self.first)
            for second, total in zip(self.seconds, sums, strict=True):
                np.multiply(self.first, second, out=self.product)
                total += self.product

    def read(self, taps: Pair) -> tuple[Real, Real]:
        """Return the sums (channel, filter, tap row, tap column) and how far each may be off; the spectra are lost."""
        sums = np.empty((*self.scales.shape, *taps))
        errors = np.empty_like(self.scales)
        plane = np.empty((taps[0], self.transform.size[1]))
        unit = self.transform.error + self.tiles * EPSILON
        for place in np.ndindex(self.scales.shape):
            spectrum = self.spectra[place]
            errors[place] = unit * (2 * self.scales[place] + self.transform.norm(spectrum))
            sums[place] = self.transform.back(spectrum, plane)[:, : taps[1]]
        return sums, errors[..., None, None]
