"""Wrong versions for chapter 8."""

from . import Mutant

KERNEL, LAYER = "kernels/mla.py", "course/layers/mla.py"

MUTANTS = (
    Mutant(
        name="mla-kernel-scale-of-the-record",
        task="08_mla_absorb.kernel",
        file=KERNEL,
        old="""    checks.lengths(seq_lens, sizes["B"], q_latent.device)
    scale = checks.softmax_scale(scale, None)""",
        new="""    checks.lengths(seq_lens, sizes["B"], q_latent.device)
    scale = checks.softmax_scale(None, sizes["d_c"] + sizes["d_r"])""",
        story="The kernel sees queries of width 576 and takes 1/sqrt(576) by default. The model was trained with 1/sqrt(192).",
        source="ollama/ollama PR 13893 (merged); NVIDIA/Megatron-LM issue 1501",
        given=True,
    ),
    Mutant(
        name="mla-value-loaded-apart",
        task="08_mla_absorb.kernel",
        file=KERNEL,
        old='"contiguous", tokens, rope_tokens, latent.unsqueeze(1), k_rope.unsqueeze(1), None, one_head, None,',
        new='"contiguous", tokens, rope_tokens, latent.unsqueeze(1), k_rope.unsqueeze(1), latent.unsqueeze(1), one_head, None,',
        story="The latent is passed once as the key and once as the value, as one would to a kernel for ordinary MQA. Every "
        "number comes out right, and 1,088 are loaded for each 576 that are there.",
        source="chapter 8, 'Loaded once, counted'; a pitfall of every kernel that takes MLA for MQA",
        given=True,
    ),
    Mutant(
        name="mla-kernel-without-rotary-part",
        task="08_mla_absorb.kernel",
        file=KERNEL,
        old='"contiguous", tokens, rope_tokens, latent.unsqueeze(1), k_rope.unsqueeze(1), None, one_head, None,',
        new='"contiguous", tokens, None, latent.unsqueeze(1), None, None, one_head, None,',
        story="The kernel gets the absorbed query and the latent, and nothing else: 512 where the record has 576.",
        source="the course's list of plausible wrong answers (a cache that forgets the rotary part)",
        given=True,
    ),
    Mutant(
        name="mla-kernel-lengths-ignored",
        task="08_mla_absorb.kernel",
        file=KERNEL,
        old="        None, seq_lens, None, None, workspace, positive, num_splits, validate, allow_tf32,",
        new="        None, None, None, None, workspace, positive, num_splits, validate, allow_tf32,",
        story="In a ragged batch every sequence attends to the longest one's slots, whatever an earlier tenant left there.",
        source="vllm-project/vllm PR 936 and issue 641 (outputs that depend on what unused slots held)",
    ),
    Mutant(
        name="mla-step-expands-the-cache",
        task="08_mla_absorb.step",
        file=LAYER,
        old='form = "absorbed" if cache is not None and x.shape[1] <= MAX_Q_LEN else "expanded"',
        new='form = "absorbed" if cache is not None and x.shape[1] > MAX_Q_LEN else "expanded"',
        story="The two forms are exchanged: prompts are absorbed, and each decoded token expands the cache. All outputs are "
        "right, and at DeepSeek-V3's widths a step does some hundred times the work.",
        source="the course's list of plausible wrong answers (an MLA step that expands the whole cache)",
    ),
    Mutant(
        name="mla-step-scale-of-the-record",
        task="08_mla_absorb.step",
        file=LAYER,
        old="attended, _ = cache.decode(q_latent[:, new], q_rope[:, new], scale=self.scale)",
        new="attended, _ = cache.decode(q_latent[:, new], q_rope[:, new], scale=(self.latent_dim + self.rope_dim) ** -0.5)",
        story="Prefill uses the model's scale and the absorbed step that of its own width, so only decoded text is odd.",
        source="NVIDIA/TensorRT-LLM PR 19112; ollama/ollama PR 13893 (merged)",
    ),
    Mutant(
        name="mla-step-without-rotary-part",
        task="08_mla_absorb.step",
        file=LAYER,
        old="attended, _ = cache.decode(q_latent[:, new], q_rope[:, new], scale=self.scale)",
        new="attended, _ = cache.decode(q_latent[:, new], q_rope[:, new] * 0, scale=self.scale)",
        story="Both parts of the query are there and only one counts; a test without positions passes.",
        source="the course's list of plausible wrong answers (a cache that forgets the rotary part)",
    ),
    Mutant(
        name="mla-step-absorbs-one-head",
        task="08_mla_absorb.step",
        file=LAYER,
        old='return torch.einsum("bthd,hcd->bthc", q_nope, self.w_uk)',
        new='return torch.einsum("bthd,cd->bthc", q_nope, self.w_uk[0])',
        story="'Absorption merges the heads', taken at its word: one matrix on the query side for all of them.",
        source="the misconception that absorbed heads are one head (chapter 8)",
    ),
    Mutant(
        name="mla-crossover-without-the-values",
        task="08_mla_absorb.plan",
        file="course/costs/latent.py",
        old="return 2 * self.n_heads * self.latent_dim * (self.nope_dim + self.head_dim_v)",
        new="return 2 * self.n_heads * self.latent_dim * self.nope_dim",
        story="W_UK is counted and W_UV is not, so expanding looks half as dear as it is.",
        source="a plausible wrong formula: 'absorb the matrix' is said of one of the two",
    ),
)
