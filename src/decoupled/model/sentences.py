"""Where sentences end: full stops that are none of an abbreviation, a number or an initial."""

import re

_END = re.compile(
    # Before a capital, a digit or another script; a run is tried once, not from each of its stops.
    r"""(?<![.!?…؟۔।])[.!?…؟۔।]+["'”’)\]]*\s+(?=["'“‘(\[]*[^\Wa-z_])"""
    r"""|[。！？]["”’」』）]*\s*"""
    r"""|\n\s*\n\s*"""
)
_ABBREVIATED = re.compile(
    r"(?:\b(?:[A-Za-z]|e\.g|i\.e|cf|vs|etc|al|approx|ca|no|nos|vol|pp?|ch|sec|fig|figs|eq|ed|eds|mr|mrs|ms|dr"
    r"|prof|st|jr|sr|inc|ltd|co|corp|dept|gen|col|sgt|capt|rev|hon|u\.s|u\.k|d\.c)|^\s*\d+)\.\s*$",
    re.IGNORECASE,
)


def sentences(text: str) -> list[str]:
    """The text in sentences, each with the space after it."""
    parts, start = [], 0
    for match in _END.finditer(text):
        # Eight characters before the stop hold the longest abbreviation of the list.
        if _ABBREVIATED.search(text[max(start, match.start() - 8) : match.end()]):
            continue
        parts.append(text[start : match.end()])
        start = match.end()
    if start < len(text):
        parts.append(text[start:])
    return parts
