"""A whole retrieval task of MTEB through an index and an engine, and what MTEB writes of it.

    python benchmarks/mteb_task.py --beir DATA/ir_classic/med --json benchmarks/results/mteb_med.json

The task is a BEIR folder, loaded from there instead of a hub: MTEB indexes, searches and scores it as any
other. `--model` is a split folder instead of the bundled model. Times that MTEB notes are left out.
"""

import tempfile
from pathlib import Path
from typing import Any

from decoupled import read_passages
from decoupled.lab.script import options, write_report
from decoupled.measure.retrieval import judged_queries


def main() -> None:
    """Run the task, and keep the scores."""
    args = options(__doc__ or "", beir=Path, model=Path, candidates=100)
    import mteb

    from decoupled.integrations.mteb import DecoupledSearch

    task = task_of(args.beir)
    with tempfile.TemporaryDirectory(dir=args.work) as scratch:
        model = DecoupledSearch(scratch, args.model, args.candidates)
        result = mteb.evaluate(model, task, cache=None, show_progress_bar=False).task_results[0]
    (scores,) = result.to_dict()["scores"]["test"]
    # Areas under curves of abstention fill pages, and say nothing here.
    kept = {name: value for name, value in scores.items() if not name.startswith("nauc_")}
    about = {"data": args.beir.name, "candidates": args.candidates}
    write_report(args, {**about, "mteb": mteb.__version__, "scores": kept})


def task_of(folder: Path) -> Any:
    """The queries, documents and grades of a BEIR folder as a task."""
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.tasks import SciFact

    queries, judged = judged_queries(folder, None)
    about = {"name": folder.name, "description": f"{folder}", "eval_splits": ["test"]}

    class Local(AbsTaskRetrieval):
        metadata = SciFact.metadata.model_copy(update=about)

        def load_data(self, *_: Any, **__: Any) -> None:
            """Fill in what a hub would give."""
            passages = read_passages(folder)
            self.corpus = {"test": {p.id: {"title": p.title, "text": p.text} for p in passages}}
            self.queries = {"test": {query.id: query.text for query in queries}}
            self.relevant_docs = {"test": {q: dict(grades) for q, grades in judged.items()}}
            self.data_loaded = True

    return Local()


if __name__ == "__main__":
    main()
