"""Chapter 6: what pages waste, where a token lies, and who owns which page."""

from ... import costs
from ...layers import PageAllocator
from ..draw import Draw
from ..properties import pages
from ..properties.predictions import number
from ..tasks import Assignment, Task


def givens(draw: Draw) -> dict:
    """Six sequences on pages, one of which fills its pages exactly; samples of a prompt; users of a prefix."""
    while True:
        page_size = draw.choice((16, 32, 64))
        lengths = [draw.integer(2, 40) * page_size, *(draw.integer(40, 3000) for _ in range(5))]
        given = {
            "page_size": page_size, "capacity": draw.choice((4096, 8192)), "lengths": draw.some(lengths, 6),
            "prompt_len": draw.integer(3, 12) * page_size - draw.integer(3, page_size // 2), "samples": draw.integer(3, 6),
            "users": draw.choice((16, 24, 48)), "prefix": 1024 * draw.integer(3, 8), "own": 128 * draw.integer(1, 4),
        }  # fmt: skip
        wasted = paged_wasted(given)
        others = [by_formula(given), one_page_more(given), mean_of_shares(given)]
        if 0.005 < wasted < 0.2 and all(abs(other / wasted - 1) > 0.05 for other in others):
            return given


def paged_wasted(given: dict) -> float:
    return costs.paged(given["lengths"], given["page_size"]).wasted


def reserved_wasted(given: dict) -> float:
    return costs.reserved(given["lengths"], given["capacity"]).wasted


def by_formula(given: dict) -> float:
    """With (P - 1) / 2 empty slots a sequence, as if lengths were not known."""
    empty = len(given["lengths"]) * costs.mean_page_waste(given["page_size"])
    return empty / (sum(given["lengths"]) + empty)


def one_page_more(given: dict) -> float:
    """With n // P + 1 pages, one too many where the last is full."""
    slots = sum((n // given["page_size"] + 1) * given["page_size"] for n in given["lengths"])
    return 1 - sum(given["lengths"]) / slots


def mean_of_shares(given: dict) -> float:
    """The mean of what each sequence wastes of its own pages."""
    shares = [costs.paged([n], given["page_size"]).wasted for n in given["lengths"]]
    return sum(shares) / len(shares)


def pages_of_samples(given: dict) -> int:
    """Pages after every sample of the prompt has written one token."""
    pool = PageAllocator(1000, given["page_size"])
    samples = [pool.allocate(given["prompt_len"])]
    samples += [pool.fork(samples[0]) for _ in range(given["samples"] - 1)]
    for sample in samples:
        pool.append(sample)
    return pool.n_pages - pool.n_free


def _prompt_pages(given: dict) -> int:
    return costs.paging.pages_of(given["prompt_len"], given["page_size"])


def times_fewer(given: dict) -> float:
    """Tokens that a step reads with the prefix once a user, over those with the prefix once in all."""
    own = [given["own"]] * given["users"]
    return costs.tokens_read(own, given["prefix"]) / costs.tokens_read(own, given["prefix"], prefix_once=True)


PREDICT = Task(
    "waste", "predict", "What is wasted, and what is shared", "predicted",
    (
        (number(
            "reserved_wasted", "share of the reserved slots that hold no token", right=reserved_wasted, unit="a share of 1",
            other_units={"per cent": 0.01},
            traps={
                "That is the share that is used.": lambda g: 1 - reserved_wasted(g),
                "Empty slots over tokens? The question is which part of all slots is empty.":
                    lambda g: reserved_wasted(g) / (1 - reserved_wasted(g)),
            },
        ), 1),
        (number(
            "paged_wasted", "share of the slots on pages that hold no token", right=paged_wasted, tolerance=0.02,
            unit="a share of 1", other_units={"per cent": 0.01},
            traps={
                "That is the mean over lengths that nobody knows. Here you know them.": by_formula,
                "How many pages does a sequence need whose last page is full?": one_page_more,
                "A mean of shares counts a short sequence as much as a long one. Count slots.": mean_of_shares,
            },
        ), 1),
        (number(
            "pages_of_samples", "pages taken after each sample has written one token", right=pages_of_samples, tolerance=0,
            unit="pages",
            traps={
                "Does the last writer still share the page?": lambda g: pages_of_samples(g) + 1,
                "That would be without sharing anything.": lambda g: g["samples"] * _prompt_pages(g),
                "They all write on the page on which the prompt ends. May they?": _prompt_pages,
            },
        ), 1),
        (number(
            "times_fewer", "how many times fewer tokens are read", right=times_fewer, unit="times",
            traps={
                "Do the users have no tokens of their own?": lambda g: g["users"],
                "Is the prefix read no more at all?": lambda g: (g["prefix"] + g["own"]) / g["own"],
            },
        ), 1),
    ),
)  # fmt: skip

ADDRESS = Task(
    "address", "fix", "Tokens from the wrong address", "mended.paged_decode",
    ((pages.small_pages, 1), (pages.large_pages, 1), (pages.odd_pages, 1), (pages.look_ups, 1)),
    hidden=("page sizes that fit no tile", "one look-up a token"),
    shipped=lambda kernels: kernels.paged_decode,
)  # fmt: skip

POOL = Task(
    "pool", "build", "An allocator with copy-on-write", "Pool",
    (
        (pages.growing, 1),
        (pages.copy_on_write, 1),
        (pages.reference_counts, 1),
        (pages.out_of_pages, 1),
        (pages.random_operations, 1),
        (pages.reuse, 1),
    ),
    hidden=("random operations", "paging after reuse"),
    shipped=lambda course: course.layers.PageAllocator,
    package="course",
)  # fmt: skip

CASCADE = Task(
    "cascade", "stretch", "A prefix that is read once", "cascade",
    (
        (pages.prefix_and_own("prefix and own tokens", "attention over the prefix and each user's own tokens", (6, 9)), 1),
        (pages.prefix_read_once, 1),
        (pages.prefix_and_own("nothing of their own", "some users have no tokens of their own yet", (0, 20, 1)), 1),
    ),
    hidden=("nothing of their own",),
)  # fmt: skip

ASSIGNMENT = Assignment(
    name="06_paged_attention",
    title="Paged attention: addresses and owners",
    minutes=85,
    objectives=(
        "compute what reserving and what pages waste for given lengths, and what sharing a prefix saves",
        "find a wrong address in a paged kernel, and name the shapes that hide it",
        "write an allocator with reference counts and copy-on-write that leaks nothing and loses nothing",
        "read a shared prefix once by making the users' query heads rows of one tile",
    ),
    tasks=(PREDICT, ADDRESS, POOL, CASCADE),
    givens=givens,
    rubric=(
        (1, "says what pages change and what not: a token's bytes stay, kernels get no faster, far less is reserved"),
        (1, "follows the gain: more sequences at once, so the weights are read once for a larger batch"),
        (1, "names a load that gains nothing: one user, lengths known and equal, or a batch that latency limits"),
    ),
)  # fmt: skip
