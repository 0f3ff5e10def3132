"""Triton's interpreter without work that it repeats for nothing.

At a launch the interpreter goes through all of ``triton.language`` and puts its own functions in the place of the compiler's,
until the launch is over. It does so again whenever a kernel calls another function, although everything is in its place by
then; over small tiles that is much of its time. Nothing else of the interpreter is changed, and no result.
"""


def patch_once() -> None:
    """Let the interpreter of this process patch the language where it is not patched, and nowhere else.

    Nothing happens the second time, nor to a Triton that names its interpreter differently. Imports Triton, whose mode has to
    be decided by then.
    """
    import triton.language as tl
    from triton.language.core import is_builtin
    from triton.runtime import interpreter

    names = ("_patch_lang", "_LangPatchScope")
    if not all(hasattr(interpreter, name) for name in names) or hasattr(interpreter._patch_lang, "everywhere"):
        return
    everywhere, nothing_to_restore = (getattr(interpreter, name) for name in names)

    def where_needed(fn):
        languages = [module for module in fn.__globals__.values() if module is tl or module is tl.core]
        # A module is patched whole or not at all, so one of its names tells. The methods of tensors belong to both modules: the
        # end of a launch puts them back, and leaves `tl.core` patched if only a function that the kernel called has patched it.
        if not languages or is_builtin(tl.tensor.__add__) or any(is_builtin(module.load) for module in languages):
            return everywhere(fn)
        return nothing_to_restore()

    where_needed.everywhere = everywhere
    interpreter._patch_lang = where_needed
