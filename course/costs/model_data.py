"""Published models as data: `model('Llama 3 8B')`, `models()`. The rows are in models.json.

Grades: A, the shape was read in the maker's own repository. B, in a copy or transcription of the official
configuration or of the paper's table. C, in a library's defaults or partly inferred: the row carries a `doubt`, is
marked ‡ when printed, and `models()` leaves it out unless asked. Parameter counts such as 70e9 are the published round
figure; where the row says 'counted' they follow from the published widths.
"""

from dataclasses import dataclass
from functools import cache

from . import attention as layer
from .attention import Attention
from .checks import finite, whole
from .latent import LatentAttention
from .table import Table
from .units import element_bytes, exact


@dataclass(frozen=True)
class Model:
    """One published model, as far as decoding depends on it.

    n_layers                     layers that keep a cache (not those of a hybrid that keep a state of fixed size)
    d_model                      width of the model
    attention                    the shape of each of those layers
    latent                       for MLA the layer around it, with the widths that a cache does not show; None for the others
    window, n_window_layers      so many of the layers keep a rolling buffer of `window` tokens; None and 0 if none do
    max_context                  longest context of the published configuration, in tokens
    total_params, active_params  all parameters, and those one token uses; None where no source was found
    n_experts, n_active_experts  routed experts of a layer, and how many a token uses; None for dense models
    source, read_in              where the figures come from first, and where they were read
    grade, doubt, note           see the module's text
    """

    name: str
    year: int
    n_layers: int
    d_model: int
    attention: Attention
    window: int | None
    n_window_layers: int
    max_context: int
    total_params: int | None
    active_params: int | None
    n_experts: int | None
    n_active_experts: int | None
    source: str
    read_in: str | None
    grade: str
    doubt: str | None = None
    note: str | None = None
    latent: LatentAttention | None = None

    def __str__(self) -> str:
        """The name, followed by ‡ if the row is doubtful."""
        return f"{self.name} ‡" if self.doubt else self.name

    @property
    def elements_per_token(self) -> int:
        """Numbers a token adds to the caches of all layers, as long as no window is full."""
        return self.n_layers * self.attention.elements_per_token

    def bytes_per_token(self, bytes_per_element: float | str = 2) -> int | float:
        """Bytes a token adds to the caches of all layers, as long as no window is full."""
        return layer.cache_bytes(self.attention, 1, n_layers=self.n_layers, bytes_per_element=bytes_per_element)

    def cache_bytes(self, context_len: int, batch: int = 1, bytes_per_element: float | str = 2) -> int | float:
        """Bytes of the caches of `batch` sequences of `context_len` tokens; windows are honoured."""
        tokens = self._cached_tokens(context_len)
        return layer.cache_bytes(self.attention, tokens, batch=batch, bytes_per_element=bytes_per_element)

    def decode_flops(self, context_len: int, batch: int = 1) -> int:
        """FLOPs of attention in one decode step, one query token a sequence, all layers; windows are honoured."""
        return layer.attention_flops(self.attention, 1, self._cached_tokens(context_len), batch=batch)

    def _cached_tokens(self, context_len: int) -> int:
        """Tokens in the caches of one sequence, summed over the layers."""
        context_len = whole("context_len", context_len, at_least=0)
        in_window = min(context_len, self.window) if self.window else 0
        return (self.n_layers - self.n_window_layers) * context_len + self.n_window_layers * in_window

    def beyond_context(self, context_len: int) -> bool:
        """Whether `context_len` is longer than the model was published for. Such a figure is shape arithmetic only."""
        return whole("context_len", context_len, at_least=0) > self.max_context

    def weight_bytes(self, bytes_per_element: float | str = 2) -> int | float:
        """Bytes of all weights. ValueError where the parameter count has no source."""
        return exact(self._known("total_params") * element_bytes(bytes_per_element))

    def weight_bytes_read(self, batch: int = 1, bytes_per_element: float | str = 2) -> int | float:
        """Bytes of weights one decode step of `batch` tokens reads.

        All of them for a dense model. In a mixture of experts a step reads the experts that any of its tokens uses,
        so the bytes grow with the batch, from the active parameters at 1 to all of them: see `experts_read` for the
        assumption. ValueError where the figures have no source.
        """
        whole("batch", batch)
        total, active = self._known("total_params"), self._known("active_params")
        if total == active:
            return self.weight_bytes(bytes_per_element)
        share = experts_read(1, self._known("n_experts"), self._known("n_active_experts"))
        # total - active are the routed experts that one token leaves unread; each further token leaves 1 - k/E of them.
        read = total - (total - active) * (1 - share) ** (batch - 1)
        return float(read * element_bytes(bytes_per_element))

    def overtake_tokens(self, bytes_per_element: float | str = 2, weight_bytes_per_element: float | str = 2) -> float:
        """batch * context_len from which a step reads more cache than weights (all of them, whatever the batch).

        ValueError for a model with windows: its cache is not proportional to the tokens.
        """
        if self.window:
            raise ValueError(f"{self.name} has windows of {self.window} tokens: its cache stops growing there")
        return self.weight_bytes(weight_bytes_per_element) / self.bytes_per_token(bytes_per_element)

    def max_batch(self, budget_bytes: float, context_len: int, bytes_per_element: float | str = 2) -> int:
        """Sequences of `context_len` tokens whose caches fit in `budget_bytes`, a budget for caches alone."""
        whole("context_len", context_len)
        one_sequence = self.cache_bytes(context_len, 1, bytes_per_element)
        return int(finite("budget_bytes", budget_bytes, zero=True) // one_sequence)

    def _known(self, field: str) -> int:
        value = getattr(self, field)
        if value is None:
            raise ValueError(f"{field} of {self.name} is not in the table: no source was found for it")
        return value


def experts_read(batch: int, n_experts: int, n_active_experts: int) -> float:
    """Share of a layer's routed experts that at least one of `batch` tokens uses: 1 - (1 - k/E)^B.

    Assumes that every token picks its k of E experts at random, independently and uniformly. Real routers favour
    some, so a real step reads fewer.
    """
    whole("n_experts", n_experts)
    if whole("n_active_experts", n_active_experts) > n_experts:
        raise ValueError(f"n_active_experts must not exceed n_experts, got {n_active_experts} of {n_experts}")
    return 1 - (1 - n_active_experts / n_experts) ** whole("batch", batch, at_least=0)


def _made(row: dict) -> Model:
    shape = row.pop("attention")
    make = Attention.mla if "latent_dim" in shape else Attention.gqa
    optional = dict.fromkeys(("window", "total_params", "n_experts", "n_active_experts", "read_in"))
    row = optional | {"n_window_layers": 0, "active_params": row.get("total_params")} | row
    if inner := row.pop("latent", None):
        n_heads, latent_dim, rope_dim = (shape[key] for key in ("n_q_heads", "latent_dim", "rope_dim"))
        widths = {"n_heads": n_heads, "latent_dim": latent_dim, "rope_dim": rope_dim}
        row["latent"] = LatentAttention(row["d_model"], **widths, **inner)
    return Model(**row, attention=make(**shape))


@cache
def _table() -> Table:
    return Table("model", "models.json", _made, also="also")


def model(name: str) -> Model:
    """The model of that name; case, blanks and hyphens don't count. ValueError for an unknown one, with the nearest."""
    return _table().find(name)


def models(*, doubtful: bool = False) -> list[Model]:
    """All models of the table, without the doubtful ones unless asked."""
    return _table().rows(doubtful=doubtful)
