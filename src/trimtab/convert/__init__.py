"""Other frameworks' configurations as run files. `convert` reads them, and executes nothing of them."""

from trimtab.convert.convert import FRAMEWORKS, Converted, convert

__all__ = ["FRAMEWORKS", "Converted", "convert"]
