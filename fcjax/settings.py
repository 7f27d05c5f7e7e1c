"""Settings as fields of frozen dataclasses: types, limits, defaults and sweeps.

Each field is a Python argument, a command-line flag, a key in config.json and a column
of results.csv.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import (
    Annotated,
    Any,
    NamedTuple,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import tyro

T = TypeVar("T")
Sweep = tuple[T, ...] | list[T | int] | T | int
"""One value, or several values that span a grid."""


def shown(default: str):
    """Returns an annotation with the text that `--help` shows as the default.

    Args:
        default: the text.

    Returns:
        The annotation, for `Annotated[TYPE, shown(TEXT)]`.
    """
    return tyro.conf.arg(help_behavior_hint=f"(default: {default})")


class Default(tuple):
    """The default values of a setting that the user did not set."""


def default(*values: Any) -> Any:
    """Marks the default of a setting. Presets and the data may choose another value.

    Args:
        *values: the default values.

    Returns:
        A `Default`, see `settings_of`.
    """
    return Default(values)


class Limits(NamedTuple):
    """The range of a number, as an annotation.

    Without this annotation, counts are at least 1 and other numbers at least 0.
    """

    least: float = -math.inf
    """Smallest accepted value."""
    above: float = -math.inf
    """Lower bound that is not accepted itself."""
    most: float = math.inf
    """Largest accepted value."""


Counts = Annotated[Sweep[int], Limits(least=1)]
"""A whole number of at least 1, or several."""
Positive = Annotated[Sweep[float], Limits(above=0)]
"""A number above 0, or several."""
Shares = Annotated[Sweep[float], Limits(most=1)]
"""A number in [0, 1], or several."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def frozen(cls: type[T]) -> type[T]:
    """Makes a class a frozen dataclass with keyword-only fields.

    Private attributes may still be set, because the pipelines of scikit-learn do so.

    Args:
        cls: a class of settings.

    Returns:
        The dataclass.
    """
    made = dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    def set_private(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def delete_private(self, name: str) -> None:
        if not name.startswith("_"):
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    setattr(made, "__setattr__", set_private)  # noqa: B010
    setattr(made, "__delattr__", delete_private)  # noqa: B010
    return made


def settings_of(
    method: Any, *changes: Mapping[str, Any], names: Collection[str]
) -> dict[str, Any]:
    """Resolves the settings of a method, see `Method.settings`.

    Args:
        method: the method as the user gave it.
        *changes: values that presets or the data choose; later ones take precedence.
            They apply to settings that the user did not set.
        names: the settings to resolve.

    Returns:
        The values by name. Settings that may be swept have tuples of values.

    Raises:
        ValueError: a value is outside of its limits.
    """
    chosen = {name: value for change in changes for name, value in change.items()}
    settings, hints = {}, get_type_hints(type(method), include_extras=True)
    for name in names:
        value = getattr(method, name)
        if kind := kind_of(hints[name]):
            value = values(value, kind)
        if value is None:
            value = chosen.get(name)
        elif isinstance(value, Default) or value == ():
            value = (chosen[name],) if name in chosen else tuple(value)
        if value == ():  # another setting replaces it
            continue
        check_numbers(name, value, hints[name])
        settings[name] = value
    return settings


def as_tuple(value: Any) -> tuple:
    """Returns the values of a setting as a tuple; a `Default` stays a `Default`.

    Args:
        value: one value, or a tuple, list, range or array of values.

    Returns:
        The values. A tuple is returned unchanged.
    """
    if isinstance(value, tuple):
        return value
    if isinstance(value, list | range | np.ndarray):
        return tuple(x.item() if isinstance(x, np.generic) else x for x in value)
    return (value,)


def values(value: Any, kind: Any) -> tuple:
    """Returns the values of a setting as a tuple of the right type.

    Args:
        value: one value or several.
        kind: the type of a value. For float, whole numbers are converted.

    Returns:
        The values; a `Default` stays a `Default`.

    Examples:
        >>> values([0, 0.5], float), values(3, int)
        ((0.0, 0.5), (3,))
    """
    result = as_tuple(value)
    if isinstance(result, Default):
        return result
    return tuple(float(x) if kind is float else x for x in result)


def given(settings: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass that the user has set.

    A field is set if it differs from its default. A field whose default presets may
    replace is set unless its value is a `Default`.

    Args:
        settings: an instance of the dataclass.

    Returns:
        The values by name.
    """
    changed = {}
    for field in dataclasses.fields(settings):
        value, default = getattr(settings, field.name), field.default
        is_default = not isinstance(default, Default) and np.array_equal(value, default)  # pyright: ignore[reportArgumentType]
        if not isinstance(value, Default) and not is_default:
            kind = kind_of(field.type)
            changed[field.name] = values(value, kind) if kind else value
    return changed


def check_values(
    name: str,
    values: tuple,
    *,
    least: int | float = -math.inf,
    most: int | float = math.inf,
) -> None:
    """Checks the values of a setting that spans a grid.

    Args:
        name: the name of the setting.
        values: its values.
        least: the smallest accepted value.
        most: the largest accepted value.

    Raises:
        ValueError: there is no value, a value occurs twice, or a value is outside of
            the limits.
    """
    if len(set(values)) != len(values) or not values:
        raise ValueError(f"`{name}` takes one or more different values, got {values}")
    if min(values) < least:
        raise ValueError(f"`{name}` must be at least {least}, got {min(values)}")
    if max(values) > most:
        raise ValueError(f"`{name}` must be at most {most}, got {max(values)}")


def kind_of(hint: Any) -> Any:
    """Returns the type of the values of a setting that may be swept.

    Args:
        hint: the type annotation of the setting.

    Returns:
        The type of one value; None if the setting cannot be swept.

    Examples:
        >>> kind_of(Counts), kind_of(tuple[float, ...]), kind_of(bool)
        (<class 'int'>, <class 'float'>, None)
    """
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    for part in (hint, *get_args(hint)):
        if get_origin(part) is tuple and get_args(part)[1:] == (...,):
            return get_args(part)[0]
    return None


def check_numbers(name: str, value: Any, hint: Any) -> None:
    """Checks that the numbers of a setting are within their limits.

    Args:
        name: the name of the setting.
        value: one value or a tuple of values.
        hint: the type annotation of the setting, which may contain `Limits`.

    Raises:
        ValueError: a number is outside of its limits.
    """
    limits = [x for x in getattr(hint, "__metadata__", ()) if isinstance(x, Limits)]
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        is_count = isinstance(number, int) and not name.endswith(("_rounds", "_steps"))
        (least, above, most) = limits[0] if limits else Limits(int(is_count))
        least = max(least, 0)
        finite = "finite and " if isinstance(number, float) else ""
        if not least <= number < math.inf:
            raise ValueError(f"`{name}` must be {finite}at least {least}, got {number}")
        if number <= above:
            raise ValueError(f"`{name}` must be above {above}, got {number}")
        if number > most:
            raise ValueError(f"`{name}` must be at most {most}, got {number}")
