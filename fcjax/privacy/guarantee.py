"""The settings of differential privacy: the protected unit, epsilon and delta."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from fcjax.privacy.accounting import Parts, traced_noise_of
from fcjax.privacy.gaussian import NoiseAt, Updates
from fcjax.settings import Limits, Sweep, as_tuple, check_values, given, shown
from fcjax.types import Scalar

Unit = Literal["examples", "clients", "clustering"]
"""The protected unit of a guarantee."""


@dataclasses.dataclass(frozen=True)
class Privacy:
    """Privacy of the clients' uploads (docs/guides/privacy.md).

    Differential privacy is on if --epsilon is given.

    Examples:
      >>> privacy = Privacy(epsilon=[1, 8], privacy_unit="clients", clip=0.5)
      >>> privacy.epsilon
      (1.0, 8.0)
    """

    epsilon: Annotated[Sweep[float], Limits(above=0), shown("no privacy")] = ()
    """Privacy budget, above 0. Small values give strong privacy and much noise."""
    delta: Annotated[float, Limits(above=0, most=0.5)] = 1e-5
    """Additive slack of the guarantee. It must be below 1 / n for n protected examples
    or clients; choose at most 0.1 / n."""
    privacy_unit: Annotated[
        Unit | None, shown("examples for exact-km and exact-fcm, else clients")
    ] = None
    """Protected unit. `examples`: one example. `clients`: one client with all of its
    examples. `clustering`: one example, but only in federated k-means; the network is
    not private."""
    clip: Annotated[float, Limits(above=0), shown("1")] = 1.0
    """Largest L2 norm of a client's update of the network, with the unit `clients`.
    With --clip-quantile, only in the first round."""
    clip_quantile: Annotated[
        float | None, Limits(above=0, most=1), shown("the clip stays the same")
    ] = None
    """Share of clients whose update is not scaled down. The clip adapts to it after
    each round."""
    radius: Annotated[float, Limits(above=0), shown("1")] = 1.0
    """Largest L2 norm of an example in private k-means. Longer examples are scaled
    down. Examples of unit length, the default, stay unchanged. With --no-unit-length,
    F values from 0 to 1 need the square root of F."""
    sample_rate: Annotated[float, Limits(above=0, most=1)] = 1.0
    """Probability that a client participates in a round of training, with the unit
    `clients`. Sampling saves computation and traffic."""
    noise_at: NoiseAt = "server"
    """The party that adds the noise. `server` must be trusted with the sums. With
    `clients`, each client adds a share of the noise, for secure sums."""
    min_members: int = 1
    """Clients do not upload clusters with fewer examples. This is no guarantee; it
    excludes --epsilon. Used by exact-km, exact-fcm, k-fed, and by methods whose
    --cluster-by is k-means."""

    def __post_init__(self):
        epsilon = tuple(float(x) for x in as_tuple(self.epsilon))
        object.__setattr__(self, "epsilon", epsilon)
        if epsilon:
            check_values("epsilon", epsilon)
        for name, most in {"delta": 0.5, "sample_rate": 1.0}.items():
            if not 0 < getattr(self, name) <= most:
                raise ValueError(
                    f"`{name}` must lie in (0, {most:g}], got {getattr(self, name)}"
                )
        if self.clip_quantile is not None and not 0 < self.clip_quantile <= 1:
            raise ValueError(
                f"`clip_quantile` must lie in (0, 1], got {self.clip_quantile}"
            )
        for name in ("clip", "radius"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"`{name}` must be above 0, got {getattr(self, name)}")
        for value in epsilon:
            if not 0 < value < float("inf"):
                raise ValueError(f"`epsilon` must be finite and above 0, got {value}")
        if self.noise_at == "clients" and self.sample_rate < 1:
            raise ValueError(
                "`sample_rate` must be 1 with `noise_at` clients, because clients "
                f"would learn who participates, got {self.sample_rate}"
            )
        if self.min_members < 1:
            raise ValueError(
                f"`min_members` must be at least 1, got {self.min_members}"
            )
        if epsilon and self.min_members > 1:
            raise ValueError("`min_members` has no effect with `epsilon`")
        changed = given(self).keys() - {"min_members"}
        if not epsilon and changed:
            raise ValueError(f"`{min(changed)}` has no effect without `epsilon`")

    def check(self, unit: Unit, num_clients: int, num_examples: int) -> None:
        """Checks that delta is below 1 / n, and that each setting has an effect.

        Args:
            unit: the protected unit.
            num_clients: number of clients.
            num_examples: number of examples.

        Raises:
            ValueError: delta is too large, or a setting has no effect on the unit.
        """
        idle = given(self).keys() & {"clip", "clip_quantile", "sample_rate"}
        if unit != "clients" and idle:
            raise ValueError(
                f"`{min(idle)}` has no effect with `privacy_unit` {unit}; it is for "
                "networks with `privacy_unit` clients"
            )
        number = num_clients if unit == "clients" else num_examples
        if self.delta >= 1 / number:
            name = "clients" if unit == "clients" else "examples"
            raise ValueError(
                f"`delta` must be below 1 / {number:,} for {number:,} protected "
                f"{name}, got {self.delta:g}"
            )

    def settings(self, unit: Unit) -> dict[str, Any]:
        """Returns the settings of a private run, as config.json has them.

        Args:
            unit: the protected unit.

        Returns:
            Values by name; `epsilon` is a tuple with one value per run.
        """
        values = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "privacy_unit": unit,
            "mechanism": "gaussian",
            "noise_at": self.noise_at,
        }
        if unit == "clients":
            values |= {"clip": self.clip, "sample_rate": self.sample_rate}
            values |= {"clip_quantile": self.clip_quantile}
        return values | {"radius": self.radius}


class Noise(NamedTuple):
    """The privacy of one run, for the builder of its method.

    Examples:
        >>> from fcjax.privacy import Part, Privacy
        >>> noise = Noise("examples", 2.0, (Part("steps", 1.0, 6),), Privacy(epsilon=1))
        >>> noise.per_client
        False
    """

    unit: Unit
    """The protected unit."""
    noise: Scalar
    """The noise multiplier of the run, see `accounting.Part.noise_multiplier`."""
    parts: Parts
    """All noisy sums of the run."""
    privacy: Privacy
    """The settings."""

    @property
    def per_client(self) -> bool:
        """Whether a client with all of its examples is protected."""
        return self.unit == "clients"

    def updates(self) -> Updates | None:
        """Returns the private averages of the rounds of training.

        Returns:
            The averages; None if the network is not private.
        """
        part = next((part for part in self.parts if part.name == "rounds"), None)
        if part is None:
            return None
        privacy = self.privacy
        return Updates(
            self.noise, part, privacy.clip, privacy.noise_at, privacy.clip_quantile
        )

    def kmeans(self) -> dict[str, Any]:
        """Returns the arguments of `fcjax.privacy.kmeans.PrivateKMeans`."""
        return {
            "noise": self.noise,
            "parts": self.parts,
            "radius": self.privacy.radius,
            "per_client": self.per_client,
            "noise_at": self.privacy.noise_at,
        }


def private_builder(
    build: Callable[[Mapping[str, Any]], Any],
    parts_of: Callable[[Mapping[str, Any]], Parts],
    unit: Unit,
    privacy: Privacy,
) -> Callable[[Mapping[str, Any]], Any]:
    """Returns a builder that adds the noise to the settings of a method.

    Args:
        build: (settings of one run) -> the algorithm. It gets the setting `privacy`, a
            `Noise`.
        parts_of: (settings of one run) -> the noisy sums of the run.
        unit: the protected unit.
        privacy: the settings of privacy. Its epsilons are those of the grid.

    Returns:
        A function of the settings of one run. Its `epsilon` may be traced.
    """

    def build_private(values: Mapping[str, Any]):
        parts = parts_of(values)
        epsilon = values["epsilon"]
        budgets = as_tuple(privacy.epsilon)
        noise = traced_noise_of(parts, epsilon, budgets, privacy.delta)
        return build({**values, "privacy": Noise(unit, noise, parts, privacy)})

    return build_private


def spent(rows: Sequence[Mapping[str, Any]]) -> str:
    """Describes the privacy budgets of finished runs.

    Args:
        rows: rows of results.csv.

    Returns:
        One line with the budget of each run and with the sum over all runs, which
        bounds what all of them together reveal. Runs with the same seed and epsilon
        share their noise, so their sum is no bound and is left out. Empty without
        private runs.

    Examples:
        >>> row = {"epsilon": 1, "delta": 1e-5, "privacy_unit": "examples", "seed": 7}
        >>> spent([row])
        'privacy: epsilon 1, delta 1e-05 per run, unit examples'
    """
    rows = [row for row in rows if row.get("epsilon") is not None]
    if not rows:
        return ""
    each = (
        " or ".join(dict.fromkeys(f"{row[name]:g}" for row in rows))
        for name in ("epsilon", "delta")
    )
    units = " or ".join(dict.fromkeys(row["privacy_unit"] for row in rows))
    line = "privacy: epsilon {}, delta {} per run, unit {}".format(*each, units)
    if len(rows) == 1:
        return line
    if len({(row["seed"], row["epsilon"]) for row in rows}) < len(rows):
        return (
            f"{line}; no sum bounds all {len(rows)} runs, because runs with the same "
            "seed and epsilon share their noise"
        )
    epsilon, delta = (sum(row[name] for row in rows) for name in ("epsilon", "delta"))
    same = " (if their clients are the same)" if "clients" in units else ""
    return (
        f"{line}; all {len(rows)} private runs together{same}: at most epsilon "
        f"{epsilon:g}, delta {delta:g}"
    )


def least_members(settings: Any) -> int:
    """Returns the smallest number of examples of an uploaded cluster.

    Args:
        settings: one attribute per setting.

    Returns:
        The setting `min_members`, or 1 if it is not set.
    """
    return getattr(settings, "min_members", 1)


def noise_in(settings: Any) -> Noise | None:
    """Returns the noise in the settings of a run; None without differential privacy.

    Args:
        settings: one attribute per setting.

    Returns:
        The value of the attribute `privacy`, which `private_builder` adds.
    """
    return getattr(settings, "privacy", None)


def updates_in(settings: Any) -> Updates | None:
    """Returns the private averages of the rounds of training.

    Args:
        settings: one attribute per setting.

    Returns:
        The averages; None if the averages are not private.
    """
    noise = noise_in(settings)
    return None if noise is None else noise.updates()
