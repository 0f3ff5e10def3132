"""Wrong versions for chapter 9."""

from . import Mutant

ROOFLINE, ATTENTION, MODEL = "course/costs/roofline.py", "course/costs/attention.py", "course/costs/model_data.py"
LISTED = "the course's list of plausible wrong answers (a time model that forgets V, KV heads and batch and adds the two times)"

MUTANTS = (
    Mutant(
        name="floor-adds-the-two-times",
        task="09_costs.time",
        file=ROOFLINE,
        old='''    """Shortest time of one kernel, in seconds: its memory time, its compute time, and the larger of them."""

    memory_s: float
    compute_s: float

    @property
    def seconds(self) -> float:
        """The larger of the two times."""
        return max(self.memory_s, self.compute_s)''',
        new='''    """Shortest time of one kernel, in seconds: its memory time, its compute time, and what follows from them."""

    memory_s: float
    compute_s: float

    @property
    def seconds(self) -> float:
        """Time of the kernel."""
        return self.memory_s + self.compute_s''',
        story="First load, then multiply: as if a kernel did one after the other. Far from the ridge nobody notices, because "
        "one term is small; near it the answer is up to twice too long.",
        source=LISTED,
        given=True,
    ),
    Mutant(
        name="floor-forgets-the-batch",
        task="09_costs.time",
        file=ROOFLINE,
        old="model.cache_bytes(context_len, batch=batch, bytes_per_element=bytes_per_element),",
        new="model.cache_bytes(context_len, bytes_per_element=bytes_per_element),",
        story="The weights are read once for the whole batch, so the cache must be too. It is not: each sequence has its own.",
        source=LISTED,
        given=True,
    ),
    Mutant(
        name="floor-forgets-products-of-the-batch",
        task="09_costs.time",
        file=ROOFLINE,
        old="model.decode_flops(context_len, batch=batch),",
        new="model.decode_flops(context_len),",
        story="Bytes grow with the batch and products do not, so every large batch looks memory-bound.",
        source="a plausible slip beside the one above",
        given=True,
    ),
    Mutant(
        name="floor-reads-weights-for-every-sequence",
        task="09_costs.time",
        file=ROOFLINE,
        old="        model.weight_bytes_read(batch, weight_bytes_per_element),",
        new="        model.weight_bytes_read(batch, weight_bytes_per_element) * batch,",
        story="Batching buys nothing in this model: the reader multiplies everything by the batch to be on the safe side.",
        source="a plausible slip: the misconception that batching only adds work",
        given=True,
    ),
    Mutant(
        name="step-takes-one-maximum",
        task="09_costs.time",
        file=ROOFLINE,
        old="return sum(each.seconds for each in floors)",
        new="return max(each.seconds for each in floors)",
        story="'The floor is the larger of the two times', read as if it held for a whole step: the products of one kernel "
        "then hide behind the loads of another that has not started.",
        source="chapter 9, 'A step is not a layer, and not a sum of everything'",
    ),
    Mutant(
        name="elements-without-the-value",
        task="09_costs.time",
        file=ATTENTION,
        old="return self.n_kv_heads * (self.head_dim_qk + self.head_dim_v - self.head_dim_shared)",
        new="return self.n_kv_heads * self.head_dim_qk",
        story="'The KV cache' counted as a K cache. For MLA it comes out right: its value lies inside the key.",
        source=LISTED,
    ),
    Mutant(
        name="elements-of-the-query-heads",
        task="09_costs.time",
        file=ATTENTION,
        old="return self.n_kv_heads * (self.head_dim_qk + self.head_dim_v - self.head_dim_shared)",
        new="return self.n_q_heads * (self.head_dim_qk + self.head_dim_v - self.head_dim_shared)",
        story="Every model taken for MHA. DeepSeek-V3's configuration, which says 128 KV heads, invites it.",
        source="KolosalAI/model-memory-calculator issue 2; EleutherAI/gpt-neox issue 1434",
    ),
    Mutant(
        name="elements-with-the-latent-twice",
        task="09_costs.share",
        file=ATTENTION,
        old="return self.n_kv_heads * (self.head_dim_qk + self.head_dim_v - self.head_dim_shared)",
        new="return self.n_kv_heads * (self.head_dim_qk + self.head_dim_v)",
        story="MLA's widths put into the formula of ordinary attention: 1,088 numbers where the record has 576.",
        source="chapter 9, 'One formula for every record'; a value counted twice",
    ),
    Mutant(
        name="elements-of-equal-widths",
        task="09_costs.share",
        file=ATTENTION,
        old="return self.n_kv_heads * (self.head_dim_qk + self.head_dim_v - self.head_dim_shared)",
        new="return self.n_kv_heads * (2 * self.head_dim_qk - self.head_dim_shared)",
        story="One width for keys and values. A model with 192 and 128 gets a fifth too much, and a cache that was sized the "
        "other way round wrote over its neighbours.",
        source="vllm-project/vllm PR 2622 (merged); LMCache/LMCache issue 688",
    ),
    Mutant(
        name="heads-that-do-not-divide",
        task="09_costs.share",
        file="course/costs/sharding.py",
        old="n_kv_heads=max(1, n_kv_heads // n_gpus))",
        new="n_kv_heads=n_kv_heads)",
        story="Query heads are divided and KV heads are not: as if all of attention were replicated like a latent.",
        source="a plausible slip: the rule of MLA applied to GQA",
    ),
    Mutant(
        name="copies-of-nothing",
        task="09_costs.share",
        file="course/costs/sharding.py",
        old="return max(1, n_gpus // attention.n_kv_heads)",
        new="return max(1, attention.n_kv_heads // n_gpus)",
        story="The quotient upside down: KV heads a GPU instead of GPUs a KV head.",
        source="a plausible slip; chapter 9, 'Several GPUs'",
    ),
    Mutant(
        name="windows-forgotten",
        task="09_costs.share",
        file=MODEL,
        old="in_window = min(context_len, self.window) if self.window else 0",
        new="in_window = context_len",
        story="Bytes a token times tokens, whatever the layers are. For Gemma 3 at 131,072 tokens that is six times too much.",
        source="a plausible wrong formula; Mistral 7B v0.1's rolling window is the classic case",
    ),
    Mutant(
        name="windows-in-every-layer",
        task="09_costs.share",
        file=MODEL,
        old="return (self.n_layers - self.n_window_layers) * context_len + self.n_window_layers * in_window",
        new="return self.n_layers * (in_window if self.window else context_len)",
        story="The configuration names one window, and every layer gets it; the few full layers are what costs.",
        source="a plausible slip: `sliding_window` read without the pattern of layers beside it",
    ),
    Mutant(
        name="windows-forgotten-by-the-products",
        task="09_costs.time",
        file=MODEL,
        old="return layer.attention_flops(self.attention, 1, self._cached_tokens(context_len), batch=batch)",
        new="return layer.attention_flops(self.attention, 1, self.n_layers * context_len, batch=batch)",
        story="The cache stops growing at the window and the products go on, over keys that are not there.",
        source="a plausible slip: bytes and FLOPs kept in two places",
    ),
)
