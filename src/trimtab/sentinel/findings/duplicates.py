"""The only place that searches for earlier reports of a finding. It reads; it never writes, fetches or posts.

It searches the ledger, other drafts in the findings folder, and local branches and commit messages of the checkout.
Searches of the upstream repository are listed as queries. They run only on request (`online=True`).
"""

import json
import re
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from trimtab.sentinel.findings.decode import Data
from trimtab.sentinel.findings.ledger import Row, alike
from trimtab.sentinel.loading.tree import CouldNotLoad, Tree, git

COMMITS = 3000
"""How far back commit messages are read."""
SECONDS = 10.0
SEARCH = "https://api.github.com/search/issues?per_page=5&q="


@dataclass(frozen=True)
class Looked:
    """What was searched, and what was found."""

    ledger: list[str]
    drafts: list[str]
    branches: list[str]
    commits: list[str]
    queries: list[str]
    online: list[Data] = field(default_factory=list[Data])
    note: str = ""

    def as_data(self) -> Data:
        return {
            "ledger": self.ledger,
            "drafts": self.drafts,
            "branches": self.branches,
            "commits": self.commits,
            "queries": self.queries,
            "online": self.online,
            "note": self.note,
        }


def look(folder: Path, row: Row, recipe: Data, tree: Tree, *, online: bool = False) -> Looked:
    """All entries that may be the same finding."""
    words = keywords(recipe)
    branches, commits, note = _checkout(tree, words)
    queries = upstream_queries(recipe)
    found = [searched(query) for query in queries] if online else []
    return Looked(
        [one.id for one in alike(folder, row)], _drafts(folder, row, recipe), branches, commits, queries, found, note
    )


def keywords(recipe: Data) -> list[str]:
    """Matches the name of the boundary as a whole word."""
    leaf = str(recipe["boundary"]["name"]).rpartition(".")[2].strip("_")
    return [leaf] if leaf else []


def upstream_queries(recipe: Data) -> list[str]:
    """Queries for the issue search of the target."""
    repository = recipe["target"].get("repository")
    scope = f"repo:{repository} " if repository else ""
    leaf = str(recipe["boundary"]["name"]).rpartition(".")[2]
    law = str(recipe["invariant"]).replace("_", " ")
    return [f"{scope}is:issue {leaf}", f"{scope}is:pr {leaf}", f"{scope}{leaf} {law}"]


def _drafts(folder: Path, row: Row, recipe: Data) -> list[str]:
    """Other folders whose reproduction file has the same boundary and invariant, in the ledger or not."""
    same: list[str] = []
    for file in sorted(folder.glob("*/recipe.json")):
        try:
            other = cast("Data", json.loads(file.read_text("utf-8")))
            about = (other["boundary"]["name"], other["boundary"].get("file"), other["invariant"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        wanted = (recipe["boundary"]["name"], recipe["boundary"].get("file"), recipe["invariant"])
        if about == wanted and other.get("bug_id") != row.id:
            same.append(file.parent.name)
    return same


def _checkout(tree: Tree, words: list[str]) -> tuple[list[str], list[str], str]:
    """Branches and commit messages that name the boundary."""
    try:
        names = git(tree.root, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes").decode()
        log = git(tree.root, "log", "-n", str(COMMITS), "--format=%h %s").decode(errors="replace")
    except (CouldNotLoad, OSError) as error:
        return [], [], f"no git history to search: {error}"
    parts = [part for word in words for part in re.split(r"_+", word) if len(part) > 3 and part not in COMMON]
    told = [name for name in names.split() if any(part in name for part in parts)]
    whole = [line for line in log.splitlines() if any(word in line for word in words)]
    rare = [line for line in log.splitlines() if parts and any(re.search(rf"\b{part}\b", line, re.I) for part in parts)]
    return told[:20], list(dict.fromkeys([*whole, *rare]))[:20], ""


COMMON = frozenset(
    {"compute", "loss", "forward", "from", "with", "batch", "policy", "mask", "masked", "mean", "calculate"}
)
"""Parts of names that are too common to identify a finding."""


def searched(query: str) -> Data:
    """One search of the public issue index, with counts and titles. A failure is returned as data."""
    request = urllib.request.Request(
        SEARCH + urllib.parse.quote(query), headers={"Accept": "application/vnd.github+json", "User-Agent": "trimtab"}
    )
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            found: Any = json.loads(answer.read(2_000_000))
        titles = [f"#{one['number']} {one['title']}" for one in found["items"][:5]]
        return {"query": query, "count": int(found["total_count"]), "titles": titles}
    except Exception as error:  # no network, a rate limit or an unexpected answer: each is only recorded
        return {"query": query, "failed": f"{type(error).__name__}: {error}"}
