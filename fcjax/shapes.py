"""Checks the shapes of array arguments against the annotations of a function."""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar, get_args

import numpy as np
from jaxtyping import Key

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Returns a function that checks the shapes of its arguments first.

    The shapes are those of the jaxtyping annotations. Arguments that share a letter
    must have the same size there. Without the check, a wrong shape might broadcast to a
    wrong value. It reads shapes only, so compiled code does not contain it.

    Args:
        function: the function.

    Returns:
        The function. It raises ValueError if a shape is wrong.

    Examples:
        >>> import jax.numpy as jnp
        >>> from fcjax.losses import nt_xent
        >>> nt_xent(jnp.ones((8, 4)), jnp.ones((7, 4)), temperature=0.5)
        Traceback (most recent call last):
        ValueError: nt_xent: z_b needs shape [B, D] with B = 8, D = 4, got [7, 4]
    """
    signature = inspect.signature(function)
    axes = {
        name: found
        for name, parameter in signature.parameters.items()
        if (found := axes_of(parameter.annotation)) is not None
    }

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            given = {}  # Python's own error is clearer.
        sizes: dict[str, Any] = {}
        for name, expected in axes.items():
            if given.get(name) is not None:
                check(f"{function.__name__}: {name}", given[name], expected, sizes)
        return function(*args, **kwargs)

    return call


def axes_of(annotation: Any) -> tuple[str, ...] | None:
    """Returns the axes of an annotation.

    Args:
        annotation: an annotation of jaxtyping, or a union with it.

    Returns:
        The names of the axes; None without an array, or with several.

    Examples:
        >>> from jaxtyping import Array, Bool
        >>> axes_of(Bool[Array, "B D"] | None)
        ('B', 'D')
    """
    # A random key of the old kind has an axis more than its annotation.
    texts = {
        part.dim_str
        for part in (annotation, *get_args(annotation))
        if isinstance(getattr(part, "dim_str", None), str) and part.dtype is not Key
    }
    return tuple(texts.pop().split()) if len(texts) == 1 else None


def check(name: str, x: Any, axes: Sequence[str], sizes: dict[str, Any]) -> None:
    """Checks the shape of an array, and adds its sizes to those that are known.

    Args:
        name: the name of the array in the error.
        x: the array.
        axes: the names of its axes. `*NAME` stands for any number of axes.
        sizes: the known sizes by name, of `*NAME` a tuple.

    Raises:
        ValueError: the shape is wrong.
    """
    shape, many = np.shape(x), [axis for axis in axes if axis.startswith("*")]
    found: list[Any] = list(shape)
    if many and len(shape) >= len(axes) - 1:
        place, count = axes.index(many[0]), len(shape) - len(axes) + 1
        found[place : place + count] = [tuple(shape[place : place + count])]
    known = dict(sizes)
    if len(found) == len(axes) and all(
        size == (int(axis) if axis.isdigit() else known.setdefault(axis, size))
        for axis, size in zip(axes, found, strict=True)
    ):
        sizes.update(known)
        return
    given = [f"{axis} = {sizes[axis]}" for axis in dict.fromkeys(axes) if axis in sizes]
    hint = ""
    if len(shape) > len(axes) and not (many or sizes):
        hint = "; map a function over further axes with jax.vmap"
    raise ValueError(
        f"{name} needs shape [{', '.join(axes)}]"
        f"{' with ' if given else ''}{', '.join(given)}, got {list(shape)}{hint}"
    )
