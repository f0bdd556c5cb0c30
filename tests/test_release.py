"""What a release says of itself agrees: version, citation, changelog, workflow."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def version():
    return re.search(r'^version = "([\d.]+)"$', read("pyproject.toml"), re.M)[1]


def test_version_citation_and_changelog_agree():
    heading = re.search(r"^## ([\d.]+) \((\d{4}-\d\d-\d\d)\)$", read("CHANGELOG.md"), re.M)
    cited = dict(re.findall(r"^(version|date-released): (\S+)$", read("CITATION.cff"), re.M))
    assert cited == {"version": heading[1], "date-released": heading[2]} and heading[1] == version()


def test_only_the_job_that_publishes_may_sign_and_it_gets_what_was_built():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    flow = yaml.safe_load(read(".github/workflows/release.yml"))
    jobs = flow["jobs"]
    assert flow["permissions"] == {"contents": "read"} and "permissions" not in jobs["build"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["needs"] == "build" and jobs["publish"]["environment"] == "release"
    # No step holds a token or a password.
    assert not re.search(
        r"secrets|password|token:(?! write)", read(".github/workflows/release.yml")
    )
    assert all("run" not in step for step in jobs["publish"]["steps"])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_extras_that_others_name_exist():
    import tomllib

    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    named = {
        extra
        for lines in extras.values()
        for line in lines
        if line.startswith("decoupled-transformer[")
        for extra in re.search(r"\[(.*)\]", line)[1].split(",")
    }
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    for page in pages:
        for extra in re.findall(r"decoupled-transformer\[([\w,-]+)\]", page.read_text("utf-8")):
            named |= set(extra.split(","))
    assert named <= extras.keys()
