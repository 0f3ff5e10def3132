"""What a notebook shows: figures, explorers, live labs, kernel source, and the reader's own predictions.

Each name is loaded when it is first used, so that showing a kernel does not wait for a plotting library.
"""

from importlib import import_module

_HOME = {
    "STYLES": "style",
    "subplots": "style",
    "figure": "figures",
    "measured_against_arithmetic": "measured",
    "shared_heads_measured": "measured_sharing",
    "token_path": "diagrams",
    "decode_step_figure": "diagrams",
    "head_tiles_figure": "diagrams",
    "reservation_figure": "diagrams_paging",
    "pages_figure": "diagrams_paging",
    "work_figure": "diagrams_paging",
    "page_size_figure": "measured_pages",
    "split_merge_figure": "diagrams_splits",
    "waves_figure": "diagrams_splits",
    "split_times": "measured_splits",
    "head_sharing_figure": "diagrams_sharing",
    "tensor_parallel_figure": "diagrams_sharing",
    "gpu_figure": "diagrams_machine",
    "turns_figure": "diagrams_machine",
    "programs_rate": "diagrams_machine",
    "number_formats_figure": "diagrams_numbers",
    "strides_figure": "diagrams_numbers",
    "bytes_per_step": "explorers.bytes_per_step",
    "roofline": "explorers.roofline",
    "decode_time": "explorers.decode_time",
    "programs_and_traffic": "explorers.programs",
    "whole_sequence_speed": "measured_full_sequence",
    "steps_figure": "measured_steps",
    "steps_table": "measured_steps",
    "step_diff": "measured_steps",
    "query_tile_figure": "diagrams_full_sequence",
    "backward_walks_figure": "diagrams_full_sequence",
    "tile_map": "explorers.tile_map",
    "online_softmax": "explorers.online_softmax",
    "forward_time": "explorers.full_sequence_time",
    "backward_time": "explorers.full_sequence_time",
    "gradient_bytes": "explorers.gradient_bytes",
    "split_sweep": "explorers.split_sweep",
    "page_size": "explorers.page_size",
    "calculator": "explorers.calculator",
    "models_side_by_side": "explorers.side_by_side",
    "kernel_ladder": "ladder",
    "gap_waterfall": "gap",
    "gap_steps": "gap",
    "predicted_against_measured": "forecasts",
    "calibration": "forecasts",
    "course_map": "diagrams_course",
    "social_card": "card",
    "page_table": "contents",
    "path_list": "contents",
    "prediction_lab": "labs_costs",
    "latent_record": "explorers.latent_record",
    "rotary_residual": "explorers.rotary_residual",
    "mla_ridge": "explorers.mla_ridge",
    "expand_or_absorb": "explorers.expand_or_absorb",
    "shared_bytes": "explorers.shared_bytes",
    "read_time": "explorers.read_time",
    "memory_strip": "explorers.memory_strip",
    "rotation": "explorers.rotation",
    "pipeline_timeline": "explorers.pipeline_timeline",
    "reads_lab": "labs_primers",
    "copy_lab": "labs_primers",
    "decode_lab": "labs",
    "forward_lab": "labs_full_sequence",
    "backward_lab": "labs_full_sequence",
    "sharing_lab": "labs_sharing",
    "cache_lab": "labs",
    "paging_lab": "labs_paging",
    "split_lab": "labs_splits",
    "hopper_lab": "labs_hopper",
    "early_release": "labs_hopper",
    "forms_figure": "measured_hopper",
    "mla_heads": "measured_mla",
    "expanded_prefill": "measured_mla",
    "latent_record_figure": "diagrams_mla",
    "absorb_figure": "diagrams_mla",
    "roles_figure": "diagrams_hopper",
    "latent_tile_figure": "diagrams_mla",
    "expanded_step_lab": "labs_mla",
    "crossover_lab": "labs_mla",
    "mla_lab": "labs_mla",
    "show": "source",
    "predict": "predictions",
    "prediction_log": "predictions",
}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name in _HOME:
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"course.views has no {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
