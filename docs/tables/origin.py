"""Where results come from: the command and the commit that each file names, and what no file may lack."""

from __future__ import annotations

import re
from typing import Any

from results import RESULTS, ROOT, Table, read

OLD = {"layers_mrpc.json", "layers_race.json", "layers_twitter.json"}
"""Files of before commits were demanded. A file that is measured again leaves this list; none joins it."""


SCRIPT = re.compile(r"python ((?:benchmarks|examples|tests)/[\w/]+\.py)")


def commit_of(name: str) -> str:
    """The commit that a file names, or an empty string."""
    of: Any = read(name)
    if isinstance(of, list):
        of = of[0]
    found = of.get("commit") or next(
        (run["commit"] for run in of.get("runs", ()) if run.get("commit")), ""
    )
    return "" if found == "HEAD" else str(found)


def faults() -> list[str]:
    """Files without a clean commit that are not known to be so, and commands of scripts that are gone."""
    said = []
    for path in sorted(RESULTS.glob("*.json*")):
        commit = commit_of(path.name)
        if (not commit or commit.endswith("-dirty")) and path.name not in OLD:
            said.append(f"{path.name} names {commit or 'no commit'}: measure it on a clean one")
        for script in sorted(set(SCRIPT.findall(path.read_text(encoding="utf-8")))):
            if not (ROOT / script).is_file():
                said.append(f"{path.name} names {script}, which is not there: say what it is now")
    return said


def origin() -> Table:
    """The files that cannot say what made them."""
    rows = []
    for name in sorted(OLD):
        commit = commit_of(name)
        if commit and not commit.endswith("-dirty"):
            continue
        what = f"`{commit}`: with changes that were not committed" if commit else "not recorded"
        rows.append((f"`{name}`", what))
    return ("measured before commits were demanded", "<commit"), rows
