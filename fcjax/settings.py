"""Settings as fields of frozen dataclasses: types, limits, defaults and sweeps.

A field is at once a Python argument, a command-line flag, a key in config.json and a
column of results.csv.
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
"""One value, or several that span a grid."""


def shown(default: str):
    """Returns an annotation: the text that `--help` shows as a flag's default."""
    return tyro.conf.arg(help_behavior_hint=f"(default: {default})")


class Default(tuple):
    """The values of a setting that was not given."""


def default(*values: Any) -> Any:
    """Returns the default of a setting. Presets and the data may choose another value,
    see `settings_of`.
    """
    return Default(values)


class Limits(NamedTuple):
    """The range of a number, as an annotation. Without one, counts are at least 1 and
    other numbers at least 0.
    """

    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf


Counts = Annotated[Sweep[int], Limits(least=1)]
Positive = Annotated[Sweep[float], Limits(above=0)]
Shares = Annotated[Sweep[float], Limits(most=1)]


@dataclass_transform(frozen_default=True, kw_only_default=True)
def frozen(cls: type[T]) -> type[T]:
    """Makes a class of settings a frozen dataclass, in which scikit-learn may still set
    private attributes, as its pipelines do.
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
    """Returns the settings of a method, see `Method.settings`."""
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
        if value == ():  # it belongs to another setting, which stands for it
            continue
        check_numbers(name, value, hints[name])
        settings[name] = value
    return settings


def as_tuple(value: Any) -> tuple:
    """Returns the values of a setting that may be swept; a `Default` stays one."""
    if isinstance(value, tuple):
        return value
    if isinstance(value, list | range | np.ndarray):
        return tuple(x.item() if isinstance(x, np.generic) else x for x in value)
    return (value,)


def values(value: Any, kind: Any) -> tuple:
    """Returns the values of a setting that may be swept, whole numbers as floats where
    the setting has floats; a `Default` stays one.

    Examples:
        >>> values([0, 0.5], float), values(3, int)
        ((0.0, 0.5), (3,))
    """
    found = as_tuple(value)
    if isinstance(found, Default):
        return found
    return tuple(float(x) if kind is float else x for x in found)


def given(settings: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass that differ from their defaults. A field that
    presets may replace counts as given wherever it is not a `Default`.
    """
    found = {}
    for field in dataclasses.fields(settings):
        value, default = getattr(settings, field.name), field.default
        is_default = not isinstance(default, Default) and np.array_equal(value, default)  # pyright: ignore[reportArgumentType]
        if not isinstance(value, Default) and not is_default:
            kind = kind_of(field.type)
            found[field.name] = values(value, kind) if kind else value
    return found


def check_values(
    name: str,
    values: tuple,
    *,
    least: int | float = -math.inf,
    most: int | float = math.inf,
) -> None:
    """Raises ValueError where a setting that spans a grid has no value, one value
    twice, or one outside of its limits.
    """
    if len(set(values)) != len(values) or not values:
        raise ValueError(f"`{name}` takes one or more different values, got {values}")
    if min(values) < least:
        raise ValueError(f"`{name}` must be at least {least}, got {min(values)}")
    if max(values) > most:
        raise ValueError(f"`{name}` must be at most {most}, got {max(values)}")


def kind_of(hint: Any) -> Any:
    """Returns the type of the values of a setting that may be swept; None of others.

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
    """Raises ValueError where a number of a setting is out of its limits."""
    found = [x for x in getattr(hint, "__metadata__", ()) if isinstance(x, Limits)]
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        is_count = isinstance(number, int) and not name.endswith(("_rounds", "_steps"))
        (least, above, most) = found[0] if found else Limits(int(is_count))
        least = max(least, 0)
        finite = "finite and " if isinstance(number, float) else ""
        if not least <= number < math.inf:
            raise ValueError(f"`{name}` must be {finite}at least {least}, got {number}")
        if number <= above:
            raise ValueError(f"`{name}` must be above {above}, got {number}")
        if number > most:
            raise ValueError(f"`{name}` must be at most {most}, got {number}")
