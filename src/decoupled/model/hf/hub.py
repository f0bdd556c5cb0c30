"""Models on a Hugging Face hub: found by name, downloaded once and kept in its cache. No torch here."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from decoupled.errors import InputError
from decoupled.model.folder import EXPORTED, HISTORY, SPEC, TOKENIZER, WEIGHTS, is_model
from decoupled.model.sums import SUMS

SAFETENSORS = "model.safetensors"
BIN = "pytorch_model.bin"

_OURS = [SPEC, WEIGHTS, TOKENIZER, HISTORY, SUMS, EXPORTED.as_posix()]
_CHECKPOINT = [
    "config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "modules.json",
    "[1-9]_*/config.json",
    "[1-9]_*/model.safetensors",
]
_LOGIN = "log in with `hf auth login`, or set HF_TOKEN"
_REASONS = {
    "GatedRepoError": f"is gated: ask for access on its page, then {_LOGIN}",
    "RepositoryNotFoundError": f"is not on the hub, or private; check the name, or {_LOGIN}",
    "RevisionNotFoundError": "has no such revision; check what follows the @",
}


def local(source: str | Path) -> Path:
    """The folder of a model: `source` itself, or a download of the hub model `name` or `name@revision`.

    Files that are in the cache already are not downloaded again, and with HF_HUB_OFFLINE=1 nothing is asked.
    """
    path = Path(source)
    return path if path.exists() else _download(str(source))


def stored(source: str | Path) -> Path | None:
    """The folder of a split model at a path or on the hub; None for what only torch can read."""
    path = local(source)
    return path if is_model(path) else None


def _download(name: str) -> Path:
    # huggingface_hub takes 0.3 s to import, which only names of a hub pay for.
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")
    with explained(name):
        # Pickles are the second choice and asked for alone: many repositories hold both, and either
        # may be gigabytes. Without torch neither is of use.
        for weights in (SAFETENSORS, BIN) if find_spec("torch") else ("config.json",):
            also = [weights.replace(".", "*."), f"{weights}.index.json"]
            path = snapshot_download(
                repository, revision=revision or None, allow_patterns=[*_OURS, *_CHECKPOINT, *also]
            )
            names = (SPEC, weights, f"{weights}.index.json")
            if any((Path(path) / name).exists() for name in names):
                break
    return Path(path)


@contextmanager
def explained(
    name: str, failed: str = "is neither a folder here nor a model that the Hugging Face hub gave"
) -> Iterator[None]:
    """Turn what a hub refuses into an `InputError` of one line with a remedy."""
    try:
        yield
    except Exception as error:  # refusals, timeouts, wrong names: each version has its own
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        remedy = f"{failed} ({reason}); check the name or path and the connection, or {_LOGIN}"
        raise InputError(f"{name!r} {_REASONS.get(type(error).__name__, remedy)}") from error
