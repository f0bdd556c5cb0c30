"""Python runs this first in every process that a test starts: readers of documents, servers, commands.

There `MUTANT` names the change to import, and `REACH` the file that takes the lines which the process runs.
"""

import os
import sys
import threading
from pathlib import Path

_HERE = str(Path(__file__).resolve().parents[1])
sys.path.insert(0, _HERE)

if change := os.environ.get("MUTANT"):
    from swapped import Swapped

    path, number = change.rsplit(":", 1)
    sys.meta_path.insert(0, Swapped(path, int(number)))
elif reach := os.environ.get("REACH"):
    from lines import Tracer

    # Written at once: a reader of documents is killed when it is no longer needed.
    _file = os.open(f"{reach}.{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    _trace = Tracer(lambda path, line: os.write(_file, f"{path}:{line}\n".encode()) and None)
    threading.settrace(_trace)
    sys.settrace(_trace)

sys.path.remove(_HERE)
