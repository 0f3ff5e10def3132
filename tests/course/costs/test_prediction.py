"""The two-constant prediction: it finds the constants of clean points, minimises relative error, refuses bad points."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from course.costs import Prediction, fit

fixed = st.floats(0, 1e-3)
bandwidths = st.floats(1e9, 1e14)
sizes = st.lists(st.integers(1 << 16, 1 << 34), min_size=2, max_size=9, unique=True)


def test_six_microseconds_and_4_68_terabytes():
    # ch. 1: from two points, tested on a third
    truth = Prediction(6e-6, 4.68e12)
    got = fit([(n, truth.seconds(n)) for n in (33_554_432, 2_147_483_648)])
    assert got.t0_s == pytest.approx(6e-6)
    assert got.bandwidth == pytest.approx(4.68e12)
    assert got.seconds(536_870_912) == pytest.approx(120.7e-6, rel=1e-3)
    assert got.seconds(0) == pytest.approx(6e-6)


@given(fixed, bandwidths, sizes)
def test_clean_points_are_reproduced(t0, bandwidth, sizes):
    truth = Prediction(t0, bandwidth)
    points = [(n, truth.seconds(n)) for n in sizes]
    times = [seconds for _, seconds in points]
    assume(max(times) > 1.001 * min(times))  # else the sizes are too small beside the fixed time to tell a bandwidth
    got = fit(points)
    for n, seconds in points:
        assert got.seconds(n) == pytest.approx(seconds, rel=1e-6)


@given(st.lists(st.tuples(st.floats(0.5, 2), st.floats(0.8, 1.25)), min_size=3, max_size=8), st.data())
def test_no_other_constants_have_smaller_relative_errors(noise, data):
    points = [(1e8 * 2**i * a, (8e-6 + 1e8 * 2**i * a / 3e12) * b) for i, (a, b) in enumerate(noise)]

    def loss(p):
        return sum((p.seconds(n) / t - 1) ** 2 for n, t in points)

    assume(points[-1][1] > 2 * points[0][1])  # doubling sizes: without noise this always holds
    best = fit(points)
    near = st.sampled_from([0.99, 0.999, 1, 1.001, 1.01]) | st.floats(0.3, 3)
    other = Prediction(best.t0_s * data.draw(near), best.bandwidth * data.draw(near))
    assert loss(best) <= loss(other) * (1 + 1e-9) + 1e-15


def test_known_least_squares():
    # the gradient of the summed squares of relative errors vanishes at the fitted a = t0 and c = 1 / bandwidth
    points = [(1, 2), (2, 3.5), (4, 5)]
    got = fit(points)
    a, c = got.t0_s, 1 / got.bandwidth
    assert a > 0
    errors = [(a + c * n) / t - 1 for n, t in points]
    assert sum(e / t for e, (_, t) in zip(errors, points, strict=True)) == pytest.approx(0, abs=1e-12)
    assert sum(e * n / t for e, (n, t) in zip(errors, points, strict=True)) == pytest.approx(0, abs=1e-12)


def test_errors_count_relatively():
    # the same 10% on a small and on a large point: the small one must not be drowned by the large one
    points = [(1e6, 1.1e-6), (1e6, 0.9e-6), (1e9, 1.1e-3), (1e9, 0.9e-3)]
    got = fit(points)
    assert got.seconds(1e6) == pytest.approx(0.98e-6, rel=0.01)  # least relative error of 1.1 and 0.9
    assert got.seconds(1e9) == pytest.approx(0.98e-3, rel=0.01)


def test_fixed_time_is_never_negative():
    # times that grow faster than the bytes would want t0 < 0
    got = fit([(1e6, 1e-6), (1e9, 2e-3)])
    assert got.t0_s == 0
    # through the origin: slope = sum(n/t) / sum((n/t)^2)
    assert 1 / got.bandwidth == pytest.approx((1e12 + 5e11) / (1e24 + 2.5e23))


@pytest.mark.parametrize(
    ("points", "error", "says"),
    [
        ([], ValueError, "at least 2 different sizes in bytes, got 0"),
        ([(1e6, 1e-6)], ValueError, "got 1"),
        ([(1e6, 1e-6), (1e6, 2e-6)], ValueError, "at least 2 different sizes in bytes, got 1"),
        (
            [(1e6, 1e-6), (1e9, float("nan"))],
            ValueError,
            "seconds of points[1] must be a finite number above 0, got nan",
        ),
        ([(1e6, 1e-6), (float("inf"), 1)], ValueError, "bytes of points[1]"),
        ([(1e6, 0.0), (1e9, 1e-3)], ValueError, "seconds of points[0] must be a finite number above 0, got 0.0"),
        ([(-1e6, 1e-6), (1e9, 1e-3)], ValueError, "bytes of points[0] must be a finite number above 0"),
        ([(1e6, True), (1e9, 1e-3)], TypeError, "seconds of points[0] must be a number, got True"),
        ([(1e6, "1 µs"), (1e9, 1e-3)], TypeError, "seconds of points[0] must be a number, got '1 µs'"),
        ([(1e6, 1e-6, 3), (1e9, 1e-3)], TypeError, "points[0] must be a pair (bytes, seconds)"),
        ([1e6, 1e9], TypeError, "points[0] must be a pair (bytes, seconds)"),
        ([(1e6, 1e-3), (1e9, 1e-3)], ValueError, "times that grow with the bytes"),
        ([(339513622, 0.1), (655934895, 0.1), (687649392, 0.1)], ValueError, "times that grow with the bytes"),
        ([(1e6, 1e-3), (1e9, 1e-6)], ValueError, "times that grow with the bytes"),
    ],
)
def test_fit_refuses(points, error, says):
    with pytest.raises(error) as caught:
        fit(points)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Prediction(-1e-6, 1e12), "t0_s must be a finite number of at least 0"),
        (lambda: Prediction(0, 0), "bandwidth must be a finite number above 0"),
        (lambda: Prediction(0, 1e12).seconds(-1), "n_bytes must be a finite number of at least 0"),
    ],
)
def test_prediction_refuses(make, says):
    with pytest.raises(ValueError) as caught:
        make()
    assert says in str(caught.value)
