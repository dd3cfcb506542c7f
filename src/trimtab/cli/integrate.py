"""`trimtab integrate`: the lines that a framework's user adds, and whether its hooks are still there."""

from trimtab.integrations.contracts import CONTRACTS, broken, contract, installed


def show_frameworks() -> None:
    """List what there is."""
    width = max(map(len, CONTRACTS))
    for name, one in CONTRACTS.items():
        print(f"{name:<{width}}  {one.tested}")
    print("\ntrimtab integrate NAME prints the lines to add; --verify checks the installed version.")


def show_lines(name: str) -> None:
    """Print how one framework is watched and corrected."""
    one = contract(name)
    print(f"{one.name}: tested with {one.tested}; {one.page}")
    for title, lines in (("watch (the loss stays what it is)", one.watch), ("correct", one.correct)):
        print(f"\n{title}:")
        print("\n".join(f"    {line}" for line in lines.splitlines()))


def verify(name: str) -> int:
    """0: the hooks are as we rely on them; 1: they are not; 2: the framework is not installed."""
    one = contract(name)
    version = installed(one)
    if version is None:
        print(f"{one.name} is not installed here, so there is nothing to check. Tested with {one.tested}.")
        return 2
    found = broken(one)
    for said in found:
        print(said)
    if not found:
        print(f"{one.name} {version}: {len(one.hooks)} hooks are as expected. Tested with {one.tested}.")
    return 1 if found else 0
