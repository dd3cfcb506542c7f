"""What a processor is asked not to do: the only place that limits the instructions of half-precision products."""

import os

LIMIT = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
"""The setting of torch's CPU library, and the newest instructions before AMX."""


def limit_instructions() -> None:
    """Leave AMX out, unless somebody has chosen otherwise; before the first product of half-precision numbers.

    Some virtual machines name AMX among their instructions and end the process that uses it. Without AMX such products
    are slower on processors that have it; single precision, the default of a run on a CPU, does not use it.
    """
    _ = os.environ.setdefault(*LIMIT)
