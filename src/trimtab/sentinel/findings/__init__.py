"""A finding as a folder a maintainer can act on: recipe, runner, payload, test, report, ledger."""
