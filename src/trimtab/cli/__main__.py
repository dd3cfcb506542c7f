"""`python -m trimtab.cli`: the command where it is not installed."""

from trimtab.cli import main

main()
