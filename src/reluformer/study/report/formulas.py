"""Reference curves: formulas in ``x`` such as ``x / 2`` or ``e / x``, read without Python's ``eval``."""

import ast
import math
import operator
from collections.abc import Callable

_NAMES = {"e": math.e, "pi": math.pi}
_FUNCTIONS: dict[str, Callable[[float], float]] = {"sqrt": math.sqrt, "log": math.log, "exp": math.exp}
_OPERATORS: dict[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def value_of(formula: str, x: float) -> float | None:
    """Return the value of a formula at ``x``; None if it is not finite, or the formula cannot be read."""
    try:
        value = _evaluate(ast.parse(formula, mode="eval").body, x)
        return value if math.isfinite(value) else None
    except (ArithmeticError, SyntaxError, TypeError, ValueError):
        return None


def _evaluate(node: ast.AST, x: float) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            if name != "x" and name not in _NAMES:
                raise ValueError(f"unknown name {name!r} in a formula")
            return x if name == "x" else _NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_evaluate(inner, x)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return float(_OPERATORS[type(sign)](_evaluate(left, x), _evaluate(right, x)))
        case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_evaluate(inner, x))
    raise ValueError(f"not a formula: {ast.dump(node)}")
