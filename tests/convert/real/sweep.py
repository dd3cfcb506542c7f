"""Every example of a framework, compared: equal, or different and the run file says why, or not compared and why."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from tests.convert.real.compare import WITHOUT_KL, Compared, compare
from tests.convert.real.examples import files
from tests.convert.real.reading import NotCompared
from tests.peers.peer import Peer, PeerError
from tests.peers.test_inside import STUBS
from tests.peers.wheels import unpack

from trimtab.convert import convert
from trimtab.errors import TrimtabError
from trimtab.sentinel.examination.wheels import locked

COMPARED = ("verl", "skyrl", "areal", "openrlhf")
OWN_CODE = ("openrlhf",)
"""Whose example scripts have names that the locked release has dropped: their own checkout computes."""
SIGNAL = r"(trainer|algorithm|actor_rollout_ref|algo|actor)\.\S*(clip|loss|kl_|entropy|estimator|correction)\S*"
SAID = re.compile(
    rf"no equivalent|[Nn]ot written|No correction is written|is weighed as the loss|weighed by sequences"
    rf"|^{SIGNAL} = .*(only known when it runs|one branch of the script)|takes the sampler's log-probs"
    rf"|over n - 1 here|penalty is summed|Theirs is the mean of their weights"
)
"""Warnings of a run file that say: this part is not what the framework computes."""


@dataclass
class Swept:
    """What became of a framework's examples."""

    framework: str
    equal: list[Compared] = field(default_factory=list)
    partly: list[Compared] = field(default_factory=list)
    said: dict[str, str] = field(default_factory=dict)
    unsaid: dict[str, str] = field(default_factory=dict)
    apart: dict[str, str] = field(default_factory=dict)

    @property
    def files(self) -> int:
        return len(self.equal) + len(self.partly) + len(self.said) + len(self.unsaid) + len(self.apart)

    def kinds(self) -> dict[tuple[str, ...], list[Compared]]:
        """The equal ones by what was compared, the most frequent first."""
        found: dict[tuple[str, ...], list[Compared]] = {}
        for one in [*self.equal, *self.partly]:
            found.setdefault(one.parts, []).append(one)
        return dict(sorted(found.items(), key=lambda kind: -len(kind[1])))


def started(framework: str, checkouts: Path | None = None) -> tuple[Peer, Path]:
    """A child process with the framework's code, and the folder of that code."""
    own = checkouts is not None and framework in OWN_CODE
    root = checkouts / framework if own and checkouts else unpack(locked()[framework])
    return Peer(root, STUBS, paths=(Path(__file__).parent,)), root


def sweep(framework: str, checkouts: Path) -> Swept:
    """Compare every example of one framework."""
    found = Swept(framework)
    peer, root = started(framework, checkouts)
    try:
        for path in files(framework, checkouts / framework):
            _sort(found, framework, path, peer, root, path.relative_to(checkouts).as_posix())
    finally:
        peer.close()
    return found


def _sort(found: Swept, framework: str, path: Path, peer: Peer, root: Path, name: str) -> None:
    try:
        one = compare(framework, path, peer, root)
        warnings = convert(framework, path).warnings
    except (TrimtabError, NotCompared, PeerError) as error:
        found.apart[name] = str(error).strip().splitlines()[-1]
        return
    if one.agrees:
        (found.partly if one.left_out else found.equal).append(one)
        return
    if framework in WITHOUT_KL and any("is weighed as the loss" in said for said in warnings):
        rest = compare(framework, path, peer, root, leave_out_kl=True)
        if rest.agrees:
            found.partly.append(rest)
            return
        one = rest
        warnings = tuple(said for said in warnings if "is weighed as the loss" not in said)
    why = [said for said in warnings if SAID.search(said) or ("rejects whole" in said and one.rejects)]
    far = f"loss {one.loss:.0e}, gradient {one.gradient:.0e} apart"
    (found.said if why else found.unsaid)[name] = f"{far}. {' '.join(why)}"
