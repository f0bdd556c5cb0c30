"""Every error that a user can cause. Each message says the value, what was expected, and the remedy.

DecoupledError
├── InputError          a text, file or argument that cannot be used
│   └── OptionError     an argument that a command has as an option
├── SpecError           an architecture that cannot be built, or a split it does not have
├── WeightsError        a checkpoint whose tensors are missing, surplus, misshapen or unreadable
├── IndexMismatch       an index opened with a model that did not make it
├── IndexBusy           a second writer on an index
├── MissingRecord       an id that the index does not hold
└── MissingDependency   an optional package that this command needs
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec


class DecoupledError(Exception):
    """Base of all errors raised on purpose; the command line prints it as one line."""


class InputError(DecoupledError):
    """A text, file or argument that cannot be used."""


class OptionError(InputError):
    """An argument that cannot be used: its name, and the rest of the sentence, such as `is 'no'; …`.

    A program reads `on_error is 'no'; …`; the command line prints `typed`, which begins with `--on-error`.
    """

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(option, problem)
        self.option, self.problem = option, problem

    def __str__(self) -> str:
        return f"{self.option} {self.problem}"

    @property
    def typed(self) -> str:
        """The message with the option as it is typed."""
        return f"--{self.option.replace('_', '-')} {self.problem}"


class SpecError(DecoupledError):
    """An architecture that cannot be built, or a split that it does not have."""


class WeightsError(DecoupledError):
    """A checkpoint whose tensors are missing, surplus, misshapen or unreadable."""


class IndexMismatch(DecoupledError):
    """An index opened with a model that did not make it."""


class IndexBusy(DecoupledError):
    """A second writer on an index."""


class MissingRecord(DecoupledError):
    """An id that the index does not hold."""


class MissingDependency(DecoupledError):
    """An optional package that this command needs, with the line that installs it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed, and this needs it; "
            f'run: pip install "decoupled-transformer[{extra}]"'
        )


_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "raise the limit on the size of files",
}


def in_words(error: DecoupledError | OSError) -> str:
    """What the command line prints: of an error of the system, the file, what happened, and a remedy."""
    if isinstance(error, OptionError):
        return error.typed
    if isinstance(error, OSError) and error.filename is not None and error.errno is not None:
        remedy = _REMEDIES.get(error.errno, "check the path and its permissions")
        return f"{error.filename2 or error.filename}: {error.strerror}; {remedy}"
    return str(error)


def need(*packages: tuple[str, str]) -> None:
    """Fail with the line that installs what is missing: (package, extra)."""
    for package, extra in packages:
        if find_spec(package) is None:
            raise MissingDependency(package, extra)


@contextmanager
def panics(explain: Callable[[str], DecoupledError]) -> Iterator[None]:
    """Our error for a panic of a library in Rust, which Python would let through every `except Exception`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise explain(str(error).partition("\n")[0]) from None
