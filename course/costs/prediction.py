"""A prediction instead of a bound: time = fixed time + bytes / bandwidth.

The floor says what cannot be beaten. Two constants, fitted from a few measured points of one GPU, say what to expect:
t0 gathers the launch, the first load and the tail, the bandwidth is what a kernel really reaches. It holds for kernels
that are bound by memory.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from .checks import finite


@dataclass(frozen=True)
class Prediction:
    """t0_s: fixed time in seconds (at least 0). bandwidth: bytes a second (above 0)."""

    t0_s: float
    bandwidth: float

    def __post_init__(self) -> None:
        """Check both numbers."""
        finite("t0_s", self.t0_s, zero=True)
        finite("bandwidth", self.bandwidth)

    def seconds(self, n_bytes: float) -> float:
        """Predicted time in seconds for a kernel that has to read `n_bytes`."""
        return self.t0_s + float(finite("n_bytes", n_bytes, zero=True)) / self.bandwidth


def fit(points: Iterable[tuple[float, float]]) -> Prediction:
    """The two constants that come closest to `points` = (bytes, seconds), by least squares of the *relative* errors.

    Relative, so that 10% counts the same at 10 µs and at 1 ms. The fixed time cannot be negative: where the points
    would have it so, the best line through the origin is returned. Raises TypeError for a point that is no pair of
    numbers, ValueError for a number that is not positive and finite, for fewer than two different sizes, and for
    times that do not grow with the bytes.
    """
    pairs = []
    for place, point in enumerate(points):
        try:
            n_bytes, seconds = point
        except (TypeError, ValueError):
            raise TypeError(f"points[{place}] must be a pair (bytes, seconds), got {point!r}") from None
        pairs.append(
            (float(finite(f"bytes of points[{place}]", n_bytes)), float(finite(f"seconds of points[{place}]", seconds)))
        )
    sizes = sorted({n_bytes for n_bytes, _ in pairs})
    if len(sizes) < 2:
        raise ValueError(f"points must hold at least 2 different sizes in bytes, got {len(sizes)}")

    # Relative errors are absolute ones with weight 1 / seconds^2; the rest is a straight line through weighted means.
    weights = [seconds**-2 for _, seconds in pairs]
    mean_bytes = _mean([n_bytes for n_bytes, _ in pairs], weights)
    mean_seconds = _mean([seconds for _, seconds in pairs], weights)
    rise = sum(w * (n - mean_bytes) * (t - mean_seconds) for w, (n, t) in zip(weights, pairs, strict=True))
    run = sum(w * (n - mean_bytes) ** 2 for w, (n, _) in zip(weights, pairs, strict=True))
    slope = rise / run
    if slope * (sizes[-1] - sizes[0]) <= 1e-9 * mean_seconds:  # equal times leave a slope of pure rounding
        raise ValueError("points must have times that grow with the bytes; these give no positive bandwidth")
    t0 = mean_seconds - slope * mean_bytes
    if t0 >= 0:
        return Prediction(t0, 1 / slope)
    through_origin = [n / t for n, t in pairs]
    return Prediction(0.0, sum(rate**2 for rate in through_origin) / sum(through_origin))


def _mean(values: list[float], weights: list[float]) -> float:
    return sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)
