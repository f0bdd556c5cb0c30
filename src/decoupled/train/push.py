"""`push`: a model folder on a Hugging Face hub, with a card that says what it is. No torch here."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoupled.errors import InputError
from decoupled.measure.info import info
from decoupled.measure.table import fact
from decoupled.model.folder import HISTORY
from decoupled.model.hf.hub import explained

if TYPE_CHECKING:
    from huggingface_hub import HfApi

FIGURES = "certificate.md"
"""File of a model folder that the card ends with; `certify --card` can write its table there."""


def push(
    model: str | Path, name: str, *, licence: str | None = None, private: bool = False
) -> dict[str, Any]:
    """Upload a model folder as `name` or `name@branch` in one commit, and say what was written.

    The repository is made where it is missing. Without a `licence`, that of the checkpoint which the model
    was split from holds, where the hub has it. Of paths in the history only the last part is uploaded.
    """
    from huggingface_hub import CommitOperationAdd, HfApi  # takes 0.3 s

    repository, _, branch = name.partition("@")
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", repository):
        raise InputError(
            f"{name!r} is no name on a hub; give one such as you/model or you/model@branch"
        )
    folder, api = Path(model), HfApi(library_name="decoupled")
    facts: dict[str, Any] = info(model)
    if facts["kind"] != "model":
        raise InputError(f"{model} is an index; push its model: {folder / 'model'}")
    history = [_without_folders(step) for step in facts["history"]]
    with explained(name, "could not be pushed"):
        base, theirs = _origin(api, facts["history"])
        text = card(facts | {"history": history}, name, base, licence or theirs)
        if (folder / FIGURES).is_file():
            text += f"\n{(folder / FIGURES).read_text(encoding='utf-8').replace('# ', '## ', 1)}"
        listed = (path for path in folder.rglob("*") if path.is_file())
        files: dict[str, Path | bytes] = {p.relative_to(folder).as_posix(): p for p in listed}
        files |= {"README.md": text.encode(), HISTORY: json.dumps(history, indent=1).encode()}
        adds = [CommitOperationAdd(path, content) for path, content in files.items()]
        api.create_repo(repository, private=private, exist_ok=True)
        if branch:
            api.create_branch(repository, branch=branch, exist_ok=True)
        done = api.create_commit(
            repository, adds, commit_message="Push a split model", revision=branch or None
        )
    return {"model": name, "commit": done.oid, "licence": licence or theirs, "files": len(adds)}


def card(facts: dict[str, Any], name: str, base: str | None, licence: str | None) -> str:
    """The model card: what was split and where, how the model was made, and how it is used."""
    ranks = "rank" in facts["heads"]
    about = {"library_name": "decoupled-transformer", "license": licence, "base_model": base}
    about["pipeline_tag"] = "text-ranking" if ranks else "question-answering"
    shown = ("family", "width", "heads", "passage_tokens", "parameters", "bytes", "fingerprint")
    lines = [
        *("---", *(f"{key}: {value}" for key, value in about.items() if value), "---", ""),
        *(f"# {name}", ""),
        f"{base or 'A pair encoder'}, split at layer {facts['split']} of {facts['layers']}: passages are "
        "encoded once below it and stored; the layers above read query and passage together.",
        *("", "| | |", "|---|---|", *(f"| {key} | {fact(facts[key])} |" for key in shown)),
        *("", "## How it was made", ""),
        *(
            f"- {fact(step)}".replace("- did ", "- ").replace("\n", "; ")
            for step in facts["history"]
        ),
        *("", "## Use", "", "```", 'pip install "decoupled-transformer"'),
        *(f"decoupled index docs/ -o docs.idx --model {name}", "```", ""),
    ]
    return "\n".join(lines)


def _origin(api: HfApi, history: list[dict[str, Any]]) -> tuple[str | None, str | None]:
    """The hub name of the checkpoint that a model was read from, and its licence, as the hub has them."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    sources = [str(step["from"]) for step in history if step.get("did") == "read"]
    with suppress(HfHubHTTPError, HFValidationError):  # a folder, or a checkpoint that is gone
        for name in sources[:1]:
            base = api.model_info(name.partition("@")[0])
            return base.id, getattr(base.card_data, "license", None)
    return None, None


def _without_folders(step: dict[str, Any]) -> dict[str, Any]:
    source = str(step.get("from", ""))
    return {**step, "from": Path(source).name} if Path(source).is_absolute() else step
