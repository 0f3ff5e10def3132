"""The arithmetic of a decode step: bytes, FLOPs, the shortest possible time, and a prediction.

Everything here is computed from shapes; nothing is measured and nothing needs a GPU. Standard library only.

    attention    what one layer leaves in the cache, and the products it costs
    latent       an MLA layer: its parameters, its two forms, and the query tokens at which they cost the same
    full_sequence  which tiles of the scores are computed, and what gradients cost
    residency    how many programs an SM holds, and the waves in which they run
    transfers    what a memory hands out, and how much must be under way
    pipeline     who works when inside one program: copies, products, softmax
    barriers     warps that meet at barriers, in every order that can happen
    stopwatch    what a clock reads around a GPU's queue, as a model
    roofline     the floor of a kernel and of a step
    prediction   fixed time plus bytes over bandwidth, fitted from measured points
    sharding     the heads of a layer divided over GPUs
    serving      a model on GPUs: cache, floors, largest batch, what decides
    waves        programs, waves and splits of a decode call
    paging       token slots: reserved, in pages, shared
    model_data   published models, with the source of every row
    gpu_data     GPUs, with the source of every row
    units        KiB, MiB, GiB, dtypes, and numbers written for people
"""

from . import barriers, pipeline
from .attention import (
    FP8_MLA,
    Attention,
    attention_flops,
    cache_bytes,
    copy_passes,
    decode_flops,
    intensity,
    linear_intensity,
)
from .full_sequence import TileMap, backward_flops, gradient_bytes, tile_map, tile_row
from .gpu_data import Gpu, gpu, gpus
from .latent import LatentAttention
from .model_data import Model, experts_read, model, models
from .paging import Occupancy, lengths_like, mean_page_waste, paged, pages_of, reserved, sequences_that_fit, tokens_read
from .prediction import Prediction, fit
from .residency import Residency, n_waves, resident
from .roofline import Floor, decode_floors, floor, step_floor
from .serving import Serving, serve
from .sharding import kv_copies, split_heads
from .stopwatch import SimulatedGpu, timed_read
from .transfers import bytes_in_flight, sectors
from .units import GiB, KiB, MiB, bytes_of, format_bytes, format_seconds
from .waves import SplitLaunch, WaveModel, fit_waves, partial_bytes, split_tokens, tokens_worth_a_split

__all__ = [
    "FP8_MLA",
    "Attention",
    "Floor",
    "GiB",
    "Gpu",
    "KiB",
    "LatentAttention",
    "MiB",
    "Model",
    "Occupancy",
    "Prediction",
    "Residency",
    "Serving",
    "SimulatedGpu",
    "SplitLaunch",
    "WaveModel",
    "TileMap",
    "attention_flops",
    "backward_flops",
    "barriers",
    "bytes_in_flight",
    "bytes_of",
    "cache_bytes",
    "copy_passes",
    "decode_floors",
    "decode_flops",
    "experts_read",
    "fit",
    "fit_waves",
    "floor",
    "format_bytes",
    "format_seconds",
    "gpu",
    "gpus",
    "gradient_bytes",
    "intensity",
    "kv_copies",
    "lengths_like",
    "linear_intensity",
    "mean_page_waste",
    "model",
    "models",
    "paged",
    "pages_of",
    "partial_bytes",
    "pipeline",
    "reserved",
    "sequences_that_fit",
    "n_waves",
    "resident",
    "sectors",
    "serve",
    "split_heads",
    "split_tokens",
    "step_floor",
    "tokens_read",
    "tokens_worth_a_split",
    "tile_map",
    "tile_row",
    "timed_read",
]
