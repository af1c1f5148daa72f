"""Closed forms fitted to learned functions of one or two inputs, in numpy and scipy.

    fit(slot, op, reference function, range of the error) -> Fit | None

An operation names its family, a function of this module, in
`metaevo.learned.operations`. The result is the simplest member of the family that
explains the function nearly as well as the best one. Losses and drifts are fitted by
their gradients, which are all that an agent receives. R² is the share of the
function's variation over the grid that is explained. `metaevo.analysis.distill` tests
whether agents train as well with the closed form.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaevo import closed_forms
from metaevo.learned import operations
from metaevo.portable import properties
from metaevo.storage.numpy_reference import Function


class Fit(NamedTuple):
    """A closed form.

    Attributes:
        op: its operation and settings, an entry of `Space.spec`.
        params: its constants, as arrays by name or one array.
        formula: as one would write it.
        r2: the share of the function's variation that it explains, at most 1.
    """

    op: Mapping[str, Any]
    params: Any
    formula: str
    r2: float


def fit(
    slot: str,
    op: Mapping[str, Any],
    function: Any,
    visited: tuple[float, float] | None = None,
) -> Fit | None:
    """The closed form of a slot's function.

    Args:
        slot: its name in the artifact.
        op: its entry in an artifact's manifest.
        function: `metaevo.storage.numpy_reference`'s.
        visited: range of value - target (mean ± 2 sd) while agents trained with it; a
            loss is fitted there.

    Returns:
        None: it has more than two inputs, or its operation names no family.
    """
    if op["op"] == "number":
        return None
    family = operations.get(op["op"]).closed_form
    if family is None or op.get("temporal") or not isinstance(function, Function):
        return None
    return operations.resolve(family)(slot, op, function, visited)


def _explained(y: np.ndarray, found: np.ndarray) -> float:
    """R²; 1 for a constant that was hit."""
    residual, total = ((y - found) ** 2).sum(), ((y - y.mean()) ** 2).sum()
    small = 1e-12 * max((y**2).sum(), 1e-12)
    return float(1 - residual / total) if total > small else float(residual <= small)


def _sum(terms: list[tuple[float, str]]) -> str:
    """`0.5 x² - 0.1 |x|`."""
    shown = [(c, text) for c, text in terms if float(f"{c:.3g}")]
    words = []
    for c, text in shown:
        sign = ("-" if c < 0 else "") if not words else ("- " if c < 0 else "+ ")
        words.append(f"{sign}{abs(c):.4g}{' ' if text else ''}{text}")
    return " ".join(words) or "0"


# --- losses of an error ---------------------------------------------------------------

NOT_MUCH = 1e-6  # of the variation: two forms that differ by it do equally well


def value_loss(slot, op, function: Function, visited) -> Fit:
    """A value loss as `closed_forms.error_loss`, of x = value - target.

    If it is scale-equivariant, as `closed_forms.scaled_error_loss`.
    """
    del slot
    x = _errors(op, visited)
    zero = np.zeros_like(x)
    if _scaled(op):
        slopes = function.gradient(x, zero, x, 1.0)[0]
        return _scaled_fit("scaled_error_loss", "value - target", x, slopes)
    params, terms, r2 = _of_error(x, function.gradient(x, zero, x)[0])
    formula = f"{_sum(terms)},  x = value - target"
    # The hand-made loss is a part of it.
    base = "zero" if op["base"] == "square" else op["base"]
    if base == "clipped_square":
        formula += ", of which ½ x² is clipped as PPO's"
    if base != "zero":
        params["square"] -= 0.5
    settings = {"op": "error_loss", "base": base, "clip_eps": op["clip_eps"]}
    return Fit(settings, _arrays(params), formula, r2)


def td_loss(slot, op, function: Function, visited) -> Fit:
    """A loss of a temporal difference as `closed_forms.td_error_loss`, x = Q - target.

    The weight of Q is the mean slope in Q, which in this family is constant. If it is
    scale-equivariant, as `closed_forms.scaled_td_error_loss`.
    """
    del slot
    x = _errors(op, visited)
    zero = np.zeros_like(x)
    if _scaled(op):
        slopes = -function.gradient(-x, zero, zero, 1.0)[0]
        return _scaled_fit("scaled_td_error_loss", "Q - target", x, slopes)
    by_error, by_q, _ = function.gradient(-x, zero, zero)
    params, terms, r2 = _of_error(x, -by_error)
    params["q"] = float(by_q.mean())
    params["square"] -= 0.5  # the hand-made loss is a part of it
    formula = f"{_sum([*terms, (params['q'], 'Q')])},  x = Q - target"
    settings = {"op": "td_error_loss", "base": "td_square"}
    return Fit(settings, _arrays(params), formula, r2)


def _scaled(op: Mapping[str, Any]) -> bool:
    """True if errors are measured in standard deviations of the targets."""
    return properties.unit(op) == "return_std"


def _scaled_fit(name: str, error: str, x: np.ndarray, slopes: np.ndarray) -> Fit:
    """The fit of a loss that scales as the squared error, by its slopes for s = 1."""
    params, terms, r2 = _of_error(x, slopes)
    params["square"] -= 0.5  # the squared error is a part of it
    formula = f"s² ({_sum(terms)}),  x = ({error}) / s,  s = return_std"
    return Fit({"op": name}, _arrays(params), formula, r2)


def _arrays(params: Mapping[str, float]) -> dict[str, np.float32]:
    return {name: np.float32(v) for name, v in params.items()}


def _errors(op: Mapping[str, Any], visited: tuple[float, float] | None) -> np.ndarray:
    """Errors at which a loss is fitted, [600]."""
    scale = op.get("scale", 2.0 if _scaled(op) else 10.0)
    low, high = visited or (-scale, scale)
    middle, half = (low + high) / 2, 0.75 * (high - low)
    # The visited range, half as far again, and both sides of 0 in any case.
    half = max(half, abs(middle) + 0.1 * half, 1e-3)
    return np.linspace(middle - half, middle + half, 600)


SLOPES: Mapping[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "square": lambda x, size: 2 * x,
    "abs": lambda x, size: np.sign(x),
    "huber": lambda x, size: np.clip(x, -size, size),
    "log_cosh": lambda x, size: size * np.tanh(x / size),
    "tilt": lambda x, size: np.ones_like(x),
}
"""Derivatives of the terms of a loss, of the error and the knee or width."""

SIZES = {"huber": "knee", "log_cosh": "width"}
"""Name of a term's size. The two are of one shape, so a form has at most one."""


def _of_error(x: np.ndarray, y: np.ndarray) -> tuple[dict, list, float]:
    """Constants, terms and R² of slopes `y` at errors `x`.

    The family is a x² + b |x| + c Huber_k(x) + d w² log cosh(x / w) + t x.
    """
    names, size, coefficients = _simplest(x, y)
    params: dict[str, float] = dict.fromkeys(SLOPES, 0.0) | {"knee": 1.0, "width": 1.0}
    params |= {SIZES[name]: size for name in names if name in SIZES}
    params |= dict(zip(names, coefficients, strict=True))
    terms = [
        (params["square"], "x²"),
        (params["abs"], "|x|"),
        (params["huber"], f"Huber(x; {params['knee']:.4g})"),
        (
            params["log_cosh"] * params["width"] ** 2,
            f"log cosh(x / {params['width']:.4g})",
        ),
        (params["tilt"], "x"),
    ]
    return params, terms, _explained(y, _slopes(x, names, size) @ coefficients)


def _slopes(x: np.ndarray, names: Sequence[str], size: float) -> np.ndarray:
    """Derivatives of the terms, [n, terms]."""
    return np.stack([SLOPES[name](x, size) for name in names], 1)


def _simplest(
    x: np.ndarray, y: np.ndarray
) -> tuple[tuple[str, ...], float, np.ndarray]:
    """Terms, size and coefficients: the fewest that do nearly as well as any."""
    reach = np.abs(x).max()
    grid = np.log(np.geomspace(0.02 * reach, reach, 25))

    def coefficients(names, size):
        return np.linalg.lstsq(_slopes(x, names, size), y, rcond=None)[0]

    def error(names, size):
        found = _slopes(x, names, size) @ coefficients(names, size)
        return float(((found - y) ** 2).sum())

    tried = []
    for number, tilt in itertools.product((0, 1, 2), ((), ("tilt",))):
        for chosen in itertools.combinations(("square", "abs", *SIZES), number):
            names, moving = (*chosen, *tilt), sum(name in SIZES for name in chosen)
            if not names or moving > 1:
                continue
            size = 1.0
            if moving:
                size = np.exp(_least(lambda z, n=names: error(n, np.exp(z)), grid))
            tried.append((len(names) + moving, error(names, size), names, float(size)))
    total = ((y - y.mean()) ** 2).sum() + 1e-300
    best = min(e for _, e, *_ in tried)
    enough = min(1.2 * best, best + 0.01 * total) + NOT_MUCH * total
    _, _, names, size = min(t for t in tried if t[1] <= enough)
    return names, size, coefficients(names, size)


def _least(
    error: Callable[[float], float], grid: np.ndarray, bounded: bool = False
) -> float:
    """The place of a function's minimum, near the best of a grid of equal steps.

    Args:
        bounded: whether it lies within the grid.
    """
    from scipy.optimize import minimize_scalar

    best, step = grid[np.argmin([error(z) for z in grid])], grid[1] - grid[0]
    bounds = best - step, best + step
    if bounded:
        bounds = np.clip(bounds, grid[0], grid[-1])
    found: Any = minimize_scalar(
        error, bounds=bounds, method="bounded", options={"xatol": 1e-9}
    )
    return float(found.x)


# --- drifts ---------------------------------------------------------------------------


def drift(slot, op, function: Function, visited) -> Fit:
    """DPO's drift with its two constants, or PPO's clip, whichever explains more."""
    del slot, op, visited
    d, a = np.meshgrid(np.linspace(-1, 1, 81), np.linspace(-3, 3, 61))
    d, a = d.ravel(), a.ravel()
    eps = np.full_like(d, 0.2)
    value, slope = function(d, a, eps), function.gradient(d, a, eps)[0]
    gains = a >= 0
    x = np.where(gains, np.expm1(d) * a, d * a)
    at = np.where(gains, a * np.exp(d), a)

    def dpo(alpha, beta):
        return np.where(x > 0, at * np.tanh(x / np.where(gains, alpha, beta)) ** 2, 0.0)

    def clip(eps):
        beyond = np.where(gains, d > np.log1p(eps), d < np.log1p(-min(eps, 0.999)))
        return np.where(beyond, a * np.exp(d), 0.0)

    def clip_value(eps):
        r = np.exp(d)
        return np.maximum((r - np.clip(r, 1 - eps, 1 + eps)) * a, 0.0)

    def least(misfit, low, high):
        grid = np.linspace(np.log(low), np.log(high), 60)
        return np.exp(_least(lambda z: float(misfit(np.exp(z))), grid, bounded=True))

    alpha, beta = (
        least(lambda z, p=part: ((dpo(z, z) - slope)[p] ** 2).sum(), 1e-2, 1e2)
        for part in (gains, ~gains)
    )
    width = least(lambda z: ((clip_value(z) - value) ** 2).sum(), 1e-3, 5.0)
    forms = [
        Fit(
            {"op": "dpo_constants", "alpha": 2.0, "beta": 0.6},
            _arrays({"alpha": np.log(alpha / 2), "beta": np.log(beta / 0.6)}),
            f"A ≥ 0: ReLU((r - 1) A - {alpha:.4g} tanh((r - 1) A / {alpha:.4g})); "
            f"A < 0: ReLU(A log r - {beta:.4g} tanh(A log r / {beta:.4g}))",
            _explained(slope, dpo(alpha, beta)),
        ),
        Fit(
            {"op": "clip_constant", "eps": 0.2},
            _arrays({"eps": np.log(width / 0.2)}),
            f"ReLU((r - clip(r, 1 ± {width:.4g})) A)",
            _explained(slope, clip(width)),
        ),
    ]
    return max(forms, key=lambda form: form.r2)


# --- activations and schedules --------------------------------------------------------


def activation(slot, op, function: Function, visited) -> Fit:
    """An activation as P(x) / (1 + |Q(x)|), weighted by how often a layer has x."""
    del slot, visited
    limit = op.get("limit", 4.0)
    from scipy.optimize import least_squares

    x = np.linspace(-1.25 * limit, 1.25 * limit, 400)
    y = function(x)
    weight = np.sqrt(np.exp(-(x**2) / 8) + 0.05)
    tops = np.stack([x**i for i in range(6)], 1)
    below = tops[:, 1:5]
    shape = limit ** np.arange(10.0)[[0, 1, 2, 3, 4, 5, 1, 2, 3, 4]]

    def form(z):
        z = z / shape
        return tops @ z[:6] / (1 + np.abs(below @ z[6:]))

    def fit_from(q):
        """Fit from a denominator, and the best numerator of it."""
        p, *_ = np.linalg.lstsq(
            tops * (weight / (1 + np.abs(below @ q)))[:, None], y * weight, rcond=None
        )
        start = np.concatenate([p, q]) * shape
        return least_squares(lambda z: (form(z) - y) * weight, start, max_nfev=300)

    denominators = np.array([[0.0] * 4, [0, 1.0, 0, 0.1], closed_forms.TANH[1]])
    found = min(map(fit_from, denominators), key=lambda result: result.cost)
    p, q = np.split(found.x / shape, [6])
    powers = ["", "x", "x²", "x³", "x⁴", "x⁵"]
    top = _sum(list(zip(p, powers, strict=True)))
    under = _sum(list(zip(q, powers[1:5], strict=True)))
    return Fit(
        {"op": "rational"},
        {"p": p.astype(np.float32), "q": q.astype(np.float32)},
        f"({top}) / (1 + |{under}|)",
        _explained(y, form(found.x)),
    )


def schedule(slot: str, op, function: Function, visited) -> Fit | None:
    """A schedule as a straight line over the lifetime, on the number's own scale."""
    del visited
    t = np.linspace(0, 1, 201)
    y = np.array([float(function(x)) for x in t])
    if "transform" not in op:
        # Its values alone tell its scale.
        positive = (y > 0).all()
        transform, scale = ("log" if positive else "linear"), 1.0
        default: Any = float(np.exp(np.log(y).mean()) if positive else y.mean())
    else:
        transform, scale, default = op["transform"], op["scale"], op["default"]
    usual = (
        np.full_like(y, default) if not isinstance(default, dict) else _line(default, t)
    )
    with np.errstate(all="ignore"):
        moved = _BACK[transform](y, usual)
    known = np.isfinite(moved)
    if known.sum() < 2:
        return None
    b, a = np.polyfit(t[known], moved[known], 1)
    found = _THERE[transform](usual, a + b * t)
    knots = np.array([a, a + b]) / scale
    start = "default" if isinstance(default, dict) else f"{default:.4g}"
    line = _sum([(a, ""), (b, "τ")])
    formula = {
        "linear": f"{start} + ({line})",
        "log": f"{start} exp({line})",
        "logit": f"logistic(logit({start}) + ({line}))",
        "one_minus_log": f"1 - (1 - {start}) exp({line})",
    }[transform]
    settings = {"kind": "linear", "num_knots": 2, "transform": transform}
    return Fit(
        {"op": "knots", **settings, "scale": scale, "default": default},
        knots.astype(np.float32),
        f"{slot} = {formula},  τ = share of the lifetime",
        _explained(y, found),
    )


def _line(default: Mapping[str, float], t: np.ndarray) -> np.ndarray:
    done = np.minimum(t / default["fraction"], 1.0)
    return default["start"] + (default["end"] - default["start"]) * done


def _logit(x):
    return np.log(x / (1 - x))


# How far y is from its default on a scale, and back.
_BACK: dict[str, Callable] = {
    "linear": lambda y, d: y - d,
    "log": lambda y, d: np.log(y / d),
    "logit": lambda y, d: _logit(y) - _logit(d),
    "one_minus_log": lambda y, d: np.log((1 - y) / (1 - d)),
}
_THERE: dict[str, Callable] = {
    "linear": lambda d, z: d + z,
    "log": lambda d, z: d * np.exp(z),
    "logit": lambda d, z: d / (d + (1 - d) * np.exp(-z)),
    "one_minus_log": lambda d, z: np.clip(1 - (1 - d) * np.exp(z), 0, 1 - 1e-6),
}
