"""Counters of cache bytes that take every model for MHA, or forget a part of what is stored."""

from . import Mutant

_FILE = "course/costs/attention.py"
_TASK = "01_kv_cache.counter"
_COUNT = (
    '        """Numbers one token leaves in this layer\'s cache: H_kv * (d_qk + d_v - d_shared)."""\n'
    "        return self.n_kv_heads * (self.head_dim_qk + self.head_dim_v - self.head_dim_shared)\n"
)


def _count(formula: str) -> str:
    """The definition with another formula, and without the one in its docstring, which would give it away."""
    return f'        """Numbers one token leaves in this layer\'s cache."""\n        return {formula}\n'


MUTANTS = (
    Mutant(
        name="query_heads_are_stored",
        task=_TASK,
        file=_FILE,
        old=_COUNT,
        new=_count("self.n_q_heads * (self.head_dim_qk + self.head_dim_v - self.head_dim_shared)"),
        story="An analyser charged the loads of the cache to the query heads, so a model with grouped heads seemed to read as "
        "much as one with MHA: four times too much for Llama 3 8B.",
        source="hahnyuan/LLM-Viewer issue 12",
        given=True,
    ),
    Mutant(
        name="one_width_for_keys_and_values",
        task=_TASK,
        file=_FILE,
        old=_COUNT,
        new=_count("self.n_kv_heads * (2 * self.head_dim_qk - self.head_dim_shared)"),
        story="Twice the width of a key, because a value is as wide. In many models it is not; a calculator that knew one "
        "width only was off by several times.",
        source="KolosalAI/model-memory-calculator issue 2",
        given=True,
    ),
    Mutant(
        name="latent_stored_twice",
        task=_TASK,
        file=_FILE,
        old=_COUNT,
        new=_count("self.n_kv_heads * (self.head_dim_qk + self.head_dim_v)"),
        story="A planner without a notion of MLA counted the latent as a key and again as a value, and refused to place a "
        "model that fits.",
        source="spark-arena/sparkrun PR 247",
        given=True,
    ),
    Mutant(
        name="head_width_by_division",
        task=_TASK,
        file=_FILE,
        old='            head_dim = config.get("head_dim") or config["hidden_size"] // n_q_heads\n',
        new='            head_dim = config["hidden_size"] // n_q_heads\n',
        story="The width of a head taken as hidden size over heads, although the configuration states another. A calculator "
        "was wrong for Qwen3 that way; in vLLM the cache was too small, and the kernel wrote over weights.",
        source="LMCache/LMCache issue 688; vllm-project/vllm PR 2622",
    ),
    Mutant(
        name="one_sequence_for_all",
        task=_TASK,
        file=_FILE,
        old='    return exact(whole("n_layers", n_layers) * sequences * tokens * ',
        new='    return exact(whole("n_layers", n_layers) * tokens * ',
        story="The batch is checked and then forgotten: with one sequence, as in most tests, nothing shows. A plausible slip; "
        "no incident is meant.",
        source="the shape that hides it is batch 1",
        given=True,
    ),
    Mutant(
        name="window_without_a_bound",
        task=_TASK,
        file=_FILE,
        old='        tokens = min(tokens, whole("window", window))\n',
        new='        tokens = whole("window", window)\n',
        story="A layer with a window is charged the whole window, however short the text. At the lengths at which windows "
        "matter nothing shows. A plausible slip; no incident is meant.",
        source="the rolling buffer of Mistral 7B (2310.06825), section 2",
        given=True,
    ),
)
