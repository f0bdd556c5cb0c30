"""Small wrong changes to a module: one operator, number, condition, bound or statement at a time."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

SWAP: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.USub: ast.UAdd,
}
# What a type says, what a message says and what a reader is told is not what the program does.
SILENT = (ast.Raise, ast.Assert, ast.AnnAssign, ast.ImportFrom, ast.Import)


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: str
    line: int
    column: int
    code: str
    """The line as it reads."""
    number: int
    """Which of the file's changes it is."""
    text: str
    scope: tuple[int, int] | None
    """First and last line of the function it lies in; None at the level of the module or a class."""

    @property
    def told(self) -> dict[str, str | int]:
        """What a report says of it."""
        where = {"path": self.path, "line": self.line, "column": self.column}
        return where | {"number": self.number, "code": self.code, "change": self.text}


Change = tuple[ast.expr | ast.stmt, str, Callable[[], None]]


def _changes(tree: ast.AST) -> Iterator[tuple[Change, tuple[int, int] | None]]:
    """Every change with the function it lies in; calling its last member makes it."""

    def visit(node: ast.AST, scope: tuple[int, int] | None) -> Iterator[tuple[Change, object]]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inner = scope or (node.lineno, node.end_lineno or node.lineno)
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    yield from visit(default, inner)
            parts: list[ast.AST] = [*node.body]
        else:
            inner = scope
            # Decorators say how a class may be used (`frozen=True`), not what it does.
            parts = (
                node.body if isinstance(node, ast.ClassDef) else list(ast.iter_child_nodes(node))
            )
        yield from ((change, inner) for change in _here(node))
        if isinstance(node, ast.AnnAssign):
            parts = [node.value] if node.value else []
        elif (
            isinstance(node, SILENT)
            or (isinstance(node, ast.keyword) and node.arg == "strict")  # of zip: an assertion
            or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        ):
            parts = []
        for part in parts:
            yield from visit(part, inner)

    yield from visit(tree, None)  # type: ignore[misc]


def _here(node: ast.AST) -> Iterator[Change]:  # noqa: C901 - a table of kinds
    """The changes of one node itself."""

    def put(**fields: object) -> Callable[[], None]:
        def change() -> None:
            for name, value in fields.items():
                setattr(node, name, value)

        return change

    def wrapped(expression: ast.expr) -> ast.expr:
        return ast.UnaryOp(ast.Not(), expression)

    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAP:
            yield node, f"{_word(op)} → {_word(SWAP[type(op)]())}", put(ops=[SWAP[type(op)]()])
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) if type(op) in SWAP:
            if not _text(node):
                yield node, f"{_word(op)} → {_word(SWAP[type(op)]())}", put(op=SWAP[type(op)]())
        case ast.UnaryOp(op=ast.USub()):
            yield node, "-x → x", put(op=ast.UAdd())
        case ast.UnaryOp(op=ast.Not(), operand=inside):
            yield node, "not x → x", put(operand=wrapped(inside))
        case ast.Constant(value=bool() as value):
            yield node, f"{value} → {not value}", put(value=not value)
        case ast.Constant(value=int() | float() as value):
            yield node, f"{value} → {value + 1}", put(value=value + 1)
        case ast.If(test=test) | ast.IfExp(test=test) if "TYPE_CHECKING" not in ast.dump(test):
            yield node, "condition reversed", put(test=wrapped(test))
        case ast.Slice(upper=ast.expr() as upper):
            one = ast.BinOp(upper, ast.Add(), ast.Constant(1))
            yield node, f"[:{ast.unparse(upper)}] → one more", put(upper=one)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield node, "returns None", put(value=ast.Constant(None))
        case ast.Expr(value=ast.Call()):
            yield node, f"no {ast.unparse(node)[:50]}", put(value=ast.Constant(None))


def _word(node: ast.AST) -> str:
    return type(node).__name__


def _text(node: ast.AST) -> bool:
    """Whether a sum or product is one of strings."""
    return any(
        isinstance(n, (ast.JoinedStr, ast.Constant))
        and not isinstance(getattr(n, "value", ""), (int, float))
        for n in ast.iter_child_nodes(node)
    )


def mutants(path: Path, root: Path) -> list[Mutant]:
    """Every change of a file."""
    source = path.read_text(encoding="utf-8")
    lines, name = source.splitlines(), str(path.relative_to(root))
    return [
        Mutant(name, node.lineno, node.col_offset, lines[node.lineno - 1].strip(), n, text, scope)
        for n, ((node, text, _), scope) in enumerate(_changes(ast.parse(source)))
    ]


def changed(source: str, number: int) -> ast.Module:
    """The module with that change."""
    tree = copy.deepcopy(ast.parse(source))
    for n, ((_, _, change), _) in enumerate(_changes(tree)):
        if n == number:
            change()
            return ast.fix_missing_locations(tree)
    raise IndexError(f"change {number} of a module that has fewer")
