"""Where an answer ends, and whether it is of the kind that the question asks for."""

import re

REACH = 120
"""Characters by which an answer grows at most on either side."""
_PAIRS = {'"': '"', "`": "`", "“": "”", "(": ")", "[": "]", "{": "}"}
_UNIT = re.compile(
    r"[ \u00a0]?(?:%|‰|°[CF]?|[kKMGTP]i?B|[kMG]?Hz|[munµ]?s|[cmk]?m|k?g|[KMG]bit/s|[mk]?[WV])(?!\w)"
)
_STATEMENT = re.compile(r"(?:[A-Z]{4,} .*|(?:\$|>>>|#) .+|.*;)\s*")
"""A line of SQL, a command after its prompt, or a line that ends with a semicolon."""

_ASKS_NUMBER = re.compile(
    r"\bhow (?:many|much|long|often|old|far|large|big|high|fast|deep|tall|wide)\b"
    r"|\bwhat (?:\w+ )?(?:number|percentage|port|year)\b|\bwhich year\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"\d|\b(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|twenty|thirty|"
    r"forty|fifty|sixty|seventy|eighty|ninety|hundreds?|thousands?|millions?|billions?|dozens?|half|third|"
    r"quarter|none?|all|both|few|several|couple|single|double|once|twice|thrice|every|each|always|never|"
    r"daily|hourly|weekly|monthly|quarterly|yearly|annually|unlimited|infinit\w+|indefinitely|forever|"
    r"second|minute|hour|day|week|month|year|decades?|century|centuries)\b",
    re.IGNORECASE,
)


def lacks_number(question: str, answer: str) -> bool:
    """Whether an English question asks how much or when, and the answer says neither number nor time."""
    return bool(_ASKS_NUMBER.search(question)) and not _NUMBER.search(answer)


def widened(text: str, start: int, end: int) -> tuple[int, int]:
    """The span with what belongs to it: the rest of a quotation, bracket or statement, and a unit."""
    if text[end - 1].isdigit() and (unit := _UNIT.match(text, end)):
        end = unit.end()
    first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    last = len(text) if last < 0 else last
    line = text[first:last]
    alone = len(line.split()) > 1 and not text[first:start].strip(" \t$>#")
    if alone and len(line) <= REACH and _STATEMENT.fullmatch(line) and "\n" in text:
        return first + len(line) - len(line.lstrip()), first + len(line.rstrip())
    for opening, closing in _PAIRS.items():
        span = text[start:end]
        opened = span.count(opening) - (span.count(closing) if closing != opening else 0)
        if opening == closing and opened % 2:
            # The mark at the end closes what began before; any other one opens what goes on after.
            before = span.endswith(closing)
        elif opening != closing and opened:
            before = opened < 0
        else:
            continue
        lower, upper = max(first, start - REACH), min(last, end + REACH)
        at = text.rfind(opening, lower, start) if before else text.find(closing, end, upper)
        if at >= 0:
            start, end = (at, end) if before else (start, at + 1)
    return start, end
