from .errors import DecoupledError as DecoupledError
from .errors import IndexBusy as IndexBusy
from .errors import IndexMismatch as IndexMismatch
from .errors import InputError as InputError
from .errors import MissingDependency as MissingDependency
from .errors import MissingRecord as MissingRecord
from .errors import SpecError as SpecError
from .errors import WeightsError as WeightsError
from .index.build import build_index as build_index
from .index.documents import read_passages as read_passages
from .index.index import Index as Index
from .lab.study.sweep import sweep as sweep
from .lab.tune import tune as tune
from .measure.pairs import read_pairs as read_pairs
from .methods.pretrain.pretrain import pretrain as pretrain
from .methods.shrink import shrink as shrink
from .model.model import Model as Model
from .model.tokens import Passage as Passage
from .search.engine import Engine as Engine
from .search.results import Answer as Answer
from .search.results import Answers as Answers
from .search.results import Evidence as Evidence
from .search.results import Hit as Hit
from .search.results import Hits as Hits
from .search.results import Label as Label
from .search.results import Timing as Timing
from .search.starter import open as open
from .serve.http.server import serve_index as serve_index
from .train.adapt import adapt as adapt
from .train.evaluate import evaluate as evaluate
from .train.export import export as export
from .train.run import distill as distill

__version__: str
__all__: list[str]
