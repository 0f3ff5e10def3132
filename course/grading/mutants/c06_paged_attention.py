"""Wrong versions of the paged address function and of the page allocator."""

from . import Mutant

LAYERS = "course/layers/pages.py"

MUTANTS = (
    Mutant(
        "table_indexed_by_token",
        "06_paged_attention.address",
        "kernels/paged.py",
        "entries = table + token // PAGE * cache.table_entry",
        "entries = table + token * cache.table_entry",
        "The block table has an entry for each page and is read as if it had one for each token. With pages of one token the "
        "two are the same, and the first tests of a paged kernel often have such pages.",
        "a plausible wrong version, which chapter 6 tries; its tests are those of the chapter ('four faults, and the tests "
        "that hide them')",
        given=True,
    ),
    Mutant(
        "slot_forgotten",
        "06_paged_attention.address",
        "kernels/paged.py",
        "offset = (token % PAGE).to(tl.int64)",
        "offset = tl.zeros([BLOCK_N], tl.int64)",
        "Every token is read from the first slot of its page. The numbers have the right size, because they are keys and "
        "values of the same sequence.",
        "a plausible wrong version, which chapter 6 tries",
        given=True,
    ),
    Mutant(
        "slot_not_reduced",
        "06_paged_attention.address",
        "kernels/paged.py",
        "offset = (token % PAGE).to(tl.int64)",
        "offset = token.to(tl.int64)",
        "The position in the sequence is taken for the slot in the page, so the second page is read beyond its end. One page "
        "a sequence hides it.",
        "a plausible wrong version, which chapter 6 tries",
        given=True,
    ),
    Mutant(
        "table_indexed_by_tile",
        "06_paged_attention.address",
        "kernels/paged.py",
        "page = tl.load(table + start // PAGE * cache.table_entry).to(tl.int64)",
        "page = tl.load(table + start // BLOCK_N * cache.table_entry).to(tl.int64)",
        "The table is indexed in units of the kernel's tile where it is written in units of the manager's page. A model with "
        "mixed layers was served like that: the size of the manager's pages was passed for that of the kernel's, and a "
        "benchmark of school mathematics fell from 85 to 2 per cent.",
        "vllm-project/vllm pull request 27547; the same confusion in pull request 56381",
        given=True,
    ),
    Mutant(
        "slot_counted_from_the_tile",
        "06_paged_attention.address",
        "kernels/paged.py",
        "offset = (token % PAGE).to(tl.int64)",
        "offset = (rows % PAGE).to(tl.int64)",
        "The slot is counted from the beginning of the tile, not of the sequence. Right as long as tiles begin where pages "
        "begin, which they do for every power of two.",
        "a plausible wrong version; page sizes outside a kernel's usual ones break in practice, as in "
        "flashinfer-ai/flashinfer issue 4347 (pages of more than 128 tokens)",
    ),
    Mutant(
        "page_begins_at_the_tile",
        "06_paged_attention.address",
        "kernels/paged.py",
        "tl.cast(start % PAGE, tl.int64), rows.to(tl.int64)",
        "tl.cast(0, tl.int64), rows.to(tl.int64)",
        "The second tile of a page is read from its first slots again. A page as large as a tile hides it, and that is the "
        "size that most kernels are tuned for.",
        "a plausible wrong version, which chapter 6 tries",
    ),
    Mutant(
        "one_page_for_a_tile",
        "06_paged_attention.address",
        "kernels/paged.py",
        "entries = table + token // PAGE * cache.table_entry",
        "entries = table + (start + rows * 0) // PAGE * cache.table_entry",
        "A tile that spans pages takes the page of its first token for all of them, as if logical neighbours were physical "
        "ones. In a fresh pool they are.",
        "hw-native-sys/pypto pull request 470 (review: neighbouring entries of a block table need not be neighbours in memory)",
    ),
    Mutant(
        "every_sequence_the_first",
        "06_paged_attention.address",
        "kernels/paged.py",
        "table = cache.block_table + sequence * cache.table_sequence",
        "table = cache.block_table",
        "All sequences read by the first row of the table. A batch of one hides it.",
        "a plausible wrong version; batch 1 is the habit that hides it",
    ),
    Mutant(
        "dead_slots_are_read",
        "06_paged_attention.address",
        "kernels/paged.py",
        "live = rows < stop - start",
        "live = rows >= 0",
        "The whole last page is loaded, whatever lies behind the last token, and the table is read beyond the sequence. The "
        "scores of dead tokens are masked, so their weight is 0; but 0 times NaN is NaN. A cache filled with zeros hides it.",
        "vllm-project/vllm issue 641, pull request 936; vllm-project/flash-attention pull request 42",
    ),
    Mutant(
        "fork_resets_the_count",
        "06_paged_attention.pool",
        LAYERS,
        "self._owners[page] += 1",
        "self._owners[page] = 2",
        "A fork sets the count of owners instead of adding to it: right for one fork, and the third owner's page is free "
        "while it is in use. A count that forks raise wrongly was behind a server's 'Double free!'.",
        "vllm-project/vllm issue 1556, pull request 3347",
    ),
    Mutant(
        "shared_page_is_written",
        "06_paged_attention.pool",
        LAYERS,
        "if n and self._writes_on_shared(sequence):",
        "if n > self.page_size and self._writes_on_shared(sequence):",
        "A token is written on a page that others hold too, and their token is gone. Whether it shows depends on where the "
        "prompt ends: with a full last page nothing is shared that is written.",
        "a plausible wrong version; near it is vllm-project/vllm issue 417 (blocks forked on a wrong condition)",
    ),
    Mutant(
        "copied_page_keeps_its_owner",
        "06_paged_attention.pool",
        LAYERS,
        "            self._owners[pages[-1]] -= 1\n            pages[-1]",
        "            self._owners[pages[-1]] -= 0\n            pages[-1]",
        "The writer gets its copy and is still counted as an owner of the old page, which is never free again. A server loses "
        "one page a request and stops admitting after hours.",
        "kekzl/imp issue 1115 (exactly one block a request is never returned)",
    ),
    Mutant(
        "ended_sequence_keeps_its_pages",
        "06_paged_attention.pool",
        LAYERS,
        "            if not self._owners[page]:\n                self._free.append(page)",
        "            if self._owners[page] < 0:\n                self._free.append(page)",
        "Counts fall when a sequence ends, and the page does not go back to the free ones. No result is wrong; after a while "
        "nobody is admitted.",
        "jjang-ai/vmlx pull request 68 (finished requests kept the counts of their blocks)",
    ),
    Mutant(
        "page_free_too_early",
        "06_paged_attention.pool",
        LAYERS,
        "            if not self._owners[page]:\n                self._free.append(page)",
        "            if self._owners[page] <= 1:\n                self._free.append(page)",
        "A page goes back when one owner is left, and again when that one ends: it is free twice, and two sequences get it.",
        "vllm-project/vllm issue 42571 (a block that enters the free list twice)",
    ),
    Mutant(
        "always_one_page_more",
        "06_paged_attention.pool",
        LAYERS,
        "return -(-n_tokens // self.page_size)",
        "return n_tokens // self.page_size + 1",
        "A full last page is followed by an empty one that nobody asked for. Attention is right; a sequence of whole pages, "
        "and each empty one, holds a page too many.",
        "a plausible wrong version: the ceiling of a division as the quotient plus one",
    ),
    Mutant(
        "alone_and_still_copied",
        "06_paged_attention.pool",
        LAYERS,
        "self._owners[self._pages[sequence][-1]] > 1",
        "self._owners[self._pages[sequence][-1]] > 0",
        "The last owner of a page copies it too. Every token is where it should be, at the price of a page copied at each "
        "step.",
        "a plausible wrong version: copy-on-write that does not look whether it is alone",
    ),
    Mutant(
        "takes_before_it_counts",
        "06_paged_attention.pool",
        LAYERS,
        "self._demand(self.pages_needed([sequence], n))",
        "self._demand(self._pages_of(n) - 1)",
        "What is needed is estimated too low, so the pages run out half way: some are taken, the sequence is not longer, and "
        "nobody gives them back.",
        "a plausible wrong version: allocation that fails after it has begun",
    ),
)
