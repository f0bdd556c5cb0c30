"""`export`: a model folder made ready for int8, calibrated on pairs of texts, or written as ONNX graphs."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from decoupled.errors import InputError, OptionError
from decoupled.index.documents import read_passages
from decoupled.index.manifest import MODEL, is_index
from decoupled.measure.pairs import read_pairs
from decoupled.model.folder import EXPORTED, read_spec
from decoupled.model.progress import Progress, counter
from decoupled.runtime import cpu
from decoupled.search.starter import sample_pairs


def export(
    model: str | Path,
    *,
    runtime: str = "openvino",
    int8: bool = False,
    calibrate: Sequence[str | Path] = (),
    limit: int = 256,
    progress: Progress | None = None,
) -> dict[str, object]:
    """Make a model folder, or the model of an index, run without torch; says what was written.

    OpenVINO reads a folder as it is. `int8` also calibrates it, so that it multiplies bytes: on the pairs of
    the files `calibrate`, or on passages, each asked for by its opening; on the samples where none is named.
    The runtime `onnx` writes graphs for onnxruntime into the folder `onnx`, which need no calibration.
    """
    if runtime not in ("openvino", "onnx"):
        raise OptionError("runtime", f"is {runtime!r}; choose openvino or onnx")
    folder = Path(model) / MODEL if is_index(model) else Path(model)
    cpu.protect()
    if runtime == "onnx":
        from decoupled.train.onnx import export_onnx

        return {"model": str(folder), "runtime": runtime, **export_onnx(folder, int8=int8)}
    from decoupled.runtime.openvino.calibrate import export_int8

    read_spec(folder)
    facts: dict[str, object] = {"model": str(folder), "runtime": runtime}
    if int8:
        pairs = _pairs(calibrate)
        step = counter(progress, min(limit, len(pairs)))
        facts |= export_int8(folder, pairs, limit=limit, progress=step)
    return facts


def _pairs(sources: Sequence[str | Path]) -> list[tuple[str, str]]:
    if not sources:
        return sample_pairs()
    try:
        pairs = [(p.query, p.passage) for source in sources for p in read_pairs(source)]
    except InputError:
        # No pairs: each passage is paired with its first words as a query.
        texts = [p.text for p in read_passages(*sources)]
        pairs = [(" ".join(text.split()[:12]), text) for text in texts]
    if not pairs:
        named = " ".join(map(str, sources))
        raise OptionError("calibrate", f"{named}: no pairs and no passages in it")
    return pairs


def exported_lines(facts: dict[str, object], model: str | Path) -> Iterator[str]:
    """Lines for a terminal that say what `export` wrote."""
    folder = Path(str(facts["model"]))
    if "files" in facts:
        yield f"{facts['files']}; README.md beside them says inputs and outputs"
    elif "inputs" in facts:
        yield f"{facts['file']}: the ranges of {facts['inputs']} inputs over {facts['pairs']} pairs"
        if not cpu.multiplies_bytes():
            yield "this processor multiplies floats as fast: openvino stays with them here"
    elif (folder / EXPORTED).is_file():
        yield f"{folder} runs on openvino as it is, and is calibrated for int8"
    else:
        yield f"{folder} runs on openvino as it is, in fp32, straight from its weights"
        yield f"int8 is several times faster: decoupled export {model} --int8"
