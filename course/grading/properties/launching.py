"""Calls of answers that launch kernels of the learner's own."""

import kernels

from ..answers import Answer, Observed
from ..judge import NotHere, Wrong


def observed(answer: Answer, *args, **kwargs) -> Observed:
    """``answer.observe(…)``, or `NotHere` where nothing can be launched: a right kernel fails there."""
    if kernels.MODE in ("interpreter", "compiled"):
        return answer.observe(*args, **kwargs)
    try:
        answer.observe(*args, **kwargs)
    except NotImplementedError:
        raise  # not answered, here as elsewhere
    except Exception:
        pass
    raise NotHere(f"kernels cannot be launched where kernels.MODE is {kernels.MODE!r}")


def counted(seen: Observed, argument: int | str, elements: int, name: str, times: int = 1) -> None:
    """`Wrong` unless kernels requested each of the argument's ``elements`` ``times`` times on average and nothing else."""
    requested, distinct = seen.requested(argument), seen.distinct(argument)
    if requested == 0:
        raise Wrong(f"no kernel loaded anything from {name}: the work has to be done by a Triton kernel, on {name} as it is")
    if (requested, distinct) != (times * elements, elements):
        raise Wrong(
            f"{name} has {elements:,} elements; kernels requested {requested:,}, of which {distinct:,} different ones. "
            f"Each should be asked for {'once' if times == 1 else f'{times} times'}, and nothing that is not part of {name}"
        )
