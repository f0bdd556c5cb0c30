"""An index that follows a table of PostgreSQL: of changed rows, how many are encoded again?

    python benchmarks/database.py --squad DATA/squad1/dev-v1.1.json.xz --json benchmarks/results/database.json

A private server of Debian's PostgreSQL holds the rows, the passages of SQuAD over and over with numbers. The
same build runs three times: at first, with nothing changed, and after the texts of some rows changed, the
metadata of as many others, and as many left.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from decoupled import Passage, build_index, read_passages
from decoupled.lab.script import options, write_report

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import postgres

QUERY = "select id, title, body, source from docs"


def main() -> None:
    """Build, build again, change and build again."""
    args = options(__doc__, squad=Path, rows=10_000, changed=100)
    passages = list(read_passages(args.squad))
    with (
        postgres.server("secret") as settings,
        tempfile.TemporaryDirectory(dir=args.work) as scratch,
    ):
        address = "postgresql://{user}@{host}:{port}/postgres?password=secret".format(**settings)
        with psycopg.connect(**settings, dbname="postgres", autocommit=True) as connection:
            fill(connection, passages, args.rows)
            builds = {
                "first": built(address, scratch),
                "unchanged": built(address, scratch),
            }
            change(connection, args.changed)
            builds["changed"] = built(address, scratch)
    write_report(args, {"rows": args.rows, "changed": args.changed, "builds": builds})


def fill(connection: psycopg.Connection[Any], passages: list[Passage], count: int) -> None:
    """Make the table."""
    connection.execute("create table docs (id int primary key, title text, body text, source text)")
    with connection.cursor().copy("copy docs from stdin") as copy:
        for n in range(count):
            passage = passages[n % len(passages)]
            again = n // len(passages)
            copy.write_row((n, passage.title, f"{passage.text} ({again})", "squad"))


def change(connection: psycopg.Connection[Any], count: int) -> None:
    """Other texts, which must be encoded; other metadata and lost rows, which need not be."""
    step = "select id from docs order by md5(id::text) limit %s offset %s"
    connection.execute(
        f"update docs set body = body || ' Changed.' where id in ({step})", (count, 0)
    )
    connection.execute(f"update docs set source = 'edited' where id in ({step})", (count, count))
    connection.execute(f"delete from docs where id in ({step})", (count, 2 * count))


def built(address: str, scratch: str) -> dict[str, Any]:
    """What one build did."""
    made = build_index(address, Path(scratch, "index"), query=QUERY, sync=True).to_json()
    kept = ("added", "unchanged", "replaced", "removed", "tokens", "passages")
    return {name: made[name] for name in kept}


if __name__ == "__main__":
    main()
