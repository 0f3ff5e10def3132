"""Rotations that raise no error."""

from . import Mutant

_FILE = "course/layers/rope.py"
_TASK = "p3_attention.rotation"

MUTANTS = (
    Mutant(
        name="the_other_pairing",
        task=_TASK,
        file=_FILE,
        old='x[..., 1::2]) if pairing == "interleaved" else x.chunk(2, -1)',
        new='x[..., 1::2]) if pairing == "halves" else x.chunk(2, -1)',
        story="Columns are paired by the other convention. No shape and no error tells; a loader for Llama-like checkpoints "
        "had been wrong that way for every one of them until somebody compared outputs.",
        source="ooples/AiDotNet PR 2074; huggingface/transformers issue 25199 asks whether it happened there (it did not)",
        given=True,
    ),
    Mutant(
        name="put_back_as_halves",
        task=_TASK,
        file=_FILE,
        old='    joined = torch.stack(turned, -1).flatten(-2) if pairing == "interleaved" else torch.cat(turned, -1)\n',
        new="    joined = torch.cat(turned, -1)\n",
        story="The right pairs are turned, but come back in the order of halves. Scores of queries and keys that were both "
        "turned here are right, so a test of scores passes; beside keys from anywhere else they are wrong.",
        source="the conversion that huggingface/transformers issue 25199 is about, done by half",
        given=True,
    ),
    Mutant(
        name="turned_backwards",
        task=_TASK,
        file=_FILE,
        old="    turned = a * cos - b * sin, a * sin + b * cos\n",
        new="    turned = a * cos + b * sin, b * cos - a * sin\n",
        story="The formula for columns, applied to rows: every pair turns the other way. Papers write columns and code has "
        "rows. A plausible slip; no incident is meant.",
        source="Su et al. 2021 (2104.09864), equation 15, with its matrix transposed",
        given=True,
    ),
    Mutant(
        name="twice_as_many_speeds",
        task=_TASK,
        file=_FILE,
        old="float(base) ** (-2 * pair / rope_dim)",
        new="float(base) ** (-pair / rope_dim)",
        story="The exponent counts pairs where it should count columns, so the slowest pair turns a hundred times too fast. A "
        "plausible slip; no incident is meant.",
        source="Su et al. 2021 (2104.09864), equation 15",
        given=True,
    ),
    Mutant(
        name="positions_in_bfloat16",
        task=_TASK,
        file=_FILE,
        old="positions.double().unsqueeze(-1)",
        new="positions.to(torch.bfloat16).unsqueeze(-1)",
        story="Under autocast the table of angles was computed in bfloat16, where positions above 256 collide. The training "
        "loss showed it.",
        source="huggingface/transformers PR 29285",
    ),
    Mutant(
        name="conversion_of_one_way",
        task=_TASK,
        file=_FILE,
        old="w.unflatten(axis, (2, -1)).transpose",
        new="w.unflatten(axis, (-1, 2)).transpose",
        story="The way back reorders like the way there. For heads four wide the two are the same, so a small test passes. A "
        "plausible slip; no incident is meant.",
        source="the two permutations of huggingface/transformers issue 25199",
    ),
)
