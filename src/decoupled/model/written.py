"""Layers as people write them: `4-6`, `4,5`, `auto`."""

from decoupled.errors import OptionError
from decoupled.model.spec import OneWay


def layer_numbers(option: str, text: str, remedy: str) -> list[int]:
    """The numbers of `4-6` or `4,5`, as an option has them; a range must not end before it begins."""
    layers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            numbers = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            numbers = range(0)
        if not numbers:
            raise OptionError(option, f"is {text!r}; {remedy}")
        layers += numbers
    return layers


def one_way_layers(text: str | None) -> OneWay:
    """What `--one-way` says: `auto`, a range or a list of layers; nothing where it is not given."""
    if text is None or text == "auto":
        return "auto" if text else ()
    return tuple(layer_numbers("one_way", text, "write auto, or layers such as 4-6 or 4,5"))
