"""Hits of OpenSearch or Elasticsearch in, ranked ids out; the index holds the same ids.

curl -s localhost:9200/docs/_search -H 'content-type: application/json' \
  -d '{"size": 100, "_source": false, "query": {"match": {"text": "who wrote Dracula"}}}' |
  python examples/first_stage/opensearch.py docs.idx "Who wrote Dracula?"
"""

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

import decoupled as dc


def ranked(engine: dc.Engine, query: str, response: Mapping[str, Any], k: int = 10) -> dc.Hits:
    """The `k` best of the hits in a response; ids that the index does not have are in the `notes`."""
    hits = [(hit["_id"], hit["_score"] or 0.0) for hit in response["hits"]["hits"]]
    return engine.search(query, k, candidates=max(1, len(hits)), first_stage=lambda *_: hits)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("index", help="index that holds the same ids")
    parser.add_argument("query")
    args = parser.parse_args()
    hits = ranked(dc.Engine(args.index), args.query, json.load(sys.stdin))
    for hit in hits:
        print(f"{hit.score:.3f}  {hit.id}")
    sys.stderr.write("".join(f"{note}\n" for note in hits.notes))
