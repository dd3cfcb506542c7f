"""Get a function out of a real checkout: by import, by import with stubs, or cut out of its file.

    tree = Tree.git("slime/.git", "045310b2b")
    mask = load(Spec("compute_opsm_mask", file="slime/utils/ppo_utils.py"), tree)
    with mask.trace():
        mask(args, ...)
    mask.as_data()      # lines that ran, stubs that were touched

This package imports neither torch nor the rest of Trimtab. `standalone()` is the whole package as the text of one file.
"""

import re
from pathlib import Path

from trimtab.sentinel.loading.boundary import Boundary, Call, made
from trimtab.sentinel.loading.load import load
from trimtab.sentinel.loading.tree import CouldNotLoad, Spec, Tree

__all__ = ["Boundary", "Call", "CouldNotLoad", "Spec", "Tree", "load", "made", "standalone"]

_ORDER = ("tree", "stubs", "syntax", "scratch", "importing", "cutting", "boundary", "load")


def standalone() -> str:
    """The loaders as one text that needs only the standard library, for a script that runs without Trimtab."""
    texts = [(Path(__file__).parent / f"{name}.py").read_text() for name in _ORDER]
    text = "\n\n".join(text.rstrip("\n") for text in texts)
    return re.sub(r"^from trimtab\.sentinel\.loading\.\w+ import (\([^)]*\)|[^\n]+)\n", "", text, flags=re.MULTILINE)
