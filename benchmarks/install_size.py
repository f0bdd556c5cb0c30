"""Bytes of the core install: the package and everything that it requires without extras.

    python benchmarks/install_size.py --json benchmarks/results/install_size.json

Counted from the files that each installed distribution lists, so nothing is downloaded.
"""

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from bench_report import bytes_under
from decoupled.lab.script import options, write_report

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "decoupled"


def needed(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """The distributions that one requires, those of extras and other platforms left out."""
    for line in distribution(name).requires or ():
        required, _, marker = line.partition(";")
        other = re.match(r"[\w.-]+", required)
        key = other[0].lower().replace("_", "-") if other else ""
        if (
            not key
            or key in found
            or any(w in marker for w in ("extra", "win", "python_version <"))
        ):
            continue
        try:
            found[key] = distribution(key)
        except PackageNotFoundError:  # for another platform
            continue
        needed(key, found)
    return found


def main() -> None:
    """Add the files up."""
    args = options(__doc__)
    sizes = {"decoupled": bytes_under(PACKAGE)}
    for name, made in needed("decoupled-transformer", {}).items():
        files = [Path(made.locate_file(file)) for file in made.files or ()]
        sizes[name] = sum(file.stat().st_size for file in files if file.is_file())
    ordered = dict(sorted(sizes.items(), key=lambda item: -item[1]))
    write_report(args, {"bytes": sum(sizes.values()), "distributions": ordered})


if __name__ == "__main__":
    main()
