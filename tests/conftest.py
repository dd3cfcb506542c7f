"""One thread a worker, and the tests' own modules importable by dotted path."""

import sys
from pathlib import Path

import torch

from trimtab.processor import limit_instructions

limit_instructions()
sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
