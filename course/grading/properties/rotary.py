"""What is true of rotary positions. The answer is a module with what course/layers/rope.py has."""

import torch

from .. import judge
from ..answers import Answer
from ..draw import Draw
from ..judge import Wrong
from ..tasks import named

BASE = 10000.0


def _angles(positions: torch.Tensor, width: int) -> torch.Tensor:
    """Position times the speed of each pair, [T, width / 2] in float64 (Su et al. 2021, section 3.2)."""
    speeds = torch.tensor([BASE ** (-2 * i / width) for i in range(width // 2)], dtype=torch.float64)
    return positions.double()[:, None] * speeds


def _turned(x: torch.Tensor, positions: torch.Tensor, pairing: str) -> torch.Tensor:
    """Each pair as a complex number, times e to the power of i times its angle. In float64."""
    x, width = x.double(), x.shape[-1]
    first, second = (slice(0, None, 2), slice(1, None, 2))
    if pairing == "halves":
        first, second = slice(0, width // 2), slice(width // 2, None)
    angles = _angles(positions, width)
    pairs = torch.complex(x[..., first], x[..., second]) * torch.polar(torch.ones_like(angles), angles)
    out = torch.empty_like(x)
    out[..., first], out[..., second] = pairs.real, pairs.imag
    return out


def _rotation(answer: Answer, positions: torch.Tensor, width: int, dtype=torch.float64) -> tuple:
    found = answer.get("rotation")(positions, width, dtype=dtype)
    cos, sin = judge.parts(found, 2, "cos and sin")
    shape = (len(positions), width // 2)
    return judge.tensor(cos, shape, "cos"), judge.tensor(sin, shape, "sin")


@named("speeds", "pair i of a head d wide turns by base^(-2i / d) radians for each position")
def speeds(answer: Answer, draw: Draw) -> None:
    width = draw.choice((16, 32, 64))
    positions = torch.tensor([0, 1, draw.integer(2, 20), draw.integer(21, 250)])
    for name, got, wanted in zip(
        ("cos", "sin"),
        _rotation(answer, positions, width),
        (_angles(positions, width).cos(), _angles(positions, width).sin()),
        strict=True,
    ):
        hint = f"The positions are {positions.tolist()}, the head is {width} wide. How fast does the last pair turn?"
        judge.close(got, wanted, ["token", "pair"], name, 1e-9, hint=hint)


@named("positions far out", "positions above 256 and above 100,000 are told apart, and their angles are exact")
def far_positions(answer: Answer, draw: Draw) -> None:
    far = draw.integer(100_000, 120_000)
    positions, width = torch.tensor([draw.integer(257, 2000) | 1, far, far + 1]), 32
    cos, sin = _rotation(answer, positions, width, torch.float32)
    hint = f"The positions are {positions.tolist()}. In which format is position times speed computed?"
    judge.close(cos, _angles(positions, width).cos(), ["token", "pair"], "cos", 1e-5, hint=hint)
    judge.close(sin, _angles(positions, width).sin(), ["token", "pair"], "sin", 1e-5, hint=hint)


@named("pairs", "each pair of columns is turned by its angle, and stays where it stood, in both conventions")
def pairs(answer: Answer, draw: Draw) -> None:
    width = draw.choice((8, 12, 16))
    positions = torch.tensor([0, draw.integer(1, 9), draw.integer(10, 99)])
    cos, sin = _angles(positions, width).cos(), _angles(positions, width).sin()
    x = draw.tensor(2, 3, width, dtype=torch.float64).cpu()
    for pairing in ("interleaved", "halves"):
        got = answer.get("rotate")(x, cos, sin, pairing=pairing)
        hint = (
            f"The positions are {positions.tolist()}. Follow one pair: column 1 at a position of 1, say. Which is its partner?"
        )
        name = f"rotate(…, pairing={pairing!r})"
        judge.close(got, _turned(x, positions, pairing), ["head", "token", "column"], name, 1e-9, hint=hint)


@named("conversion", "weights go from one convention to the other and back, and scores do not change")
def conversion(answer: Answer, draw: Draw) -> None:
    width, d_model = draw.choice((8, 12)), 5
    w_q, w_k = draw.tensor(2, width, d_model, dtype=torch.float64).cpu()
    h_t, h_j = draw.tensor(2, d_model, dtype=torch.float64).cpu()
    to_halves, to_interleaved = answer.get("to_halves"), answer.get("to_interleaved")
    moved = [judge.tensor(to_halves(w, dim=0), w.shape, "to_halves(w)") for w in (w_q, w_k)]
    for w, there in zip((w_q, w_k), moved, strict=True):
        back = judge.tensor(to_interleaved(there, dim=0), w.shape, "to_interleaved(w)")
        if not torch.equal(back, w):
            raise Wrong("to_interleaved(to_halves(w, dim=0), dim=0) is not w: the rows stand in another order than before")
    t, j = (torch.tensor([draw.integer(20, 90)]), torch.tensor([draw.integer(0, 9)]))

    def score(q: torch.Tensor, k: torch.Tensor, pairing: str) -> float:
        return (_turned((q @ h_t)[None], t, pairing) @ _turned((k @ h_j)[None], j, pairing).T).item()

    trained, converted = score(w_q, w_k, "interleaved"), score(*moved, "halves")
    if abs(trained - converted) > 1e-9 * max(1.0, abs(trained)):
        raise Wrong(
            f"a query at position {t.item()} and a key at {j.item()}: the trained model's score is {trained:.5g}; with the "
            f"rows of both weights put through to_halves, and pairs of halves, it is {converted:.5g}"
        )
