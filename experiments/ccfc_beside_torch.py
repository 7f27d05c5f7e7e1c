"""CCFC beside a plain PyTorch loop of its authors' recipe, seed by seed.

python experiments/ccfc_beside_torch.py fcjax --data-dir DIR
python experiments/ccfc_beside_torch.py torch --data-dir DIR    # needs fcjax[bench]
python experiments/ccfc_beside_torch.py compare

Both sides have the same images, the same deal of them and a narrow network, and draw
all else on their own: what is compared is the distribution of their scores.
"""

import csv
import dataclasses
import random
from pathlib import Path
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from PIL import Image, ImageFilter
from scipy import stats
from sklearn.cluster import KMeans

from fcjax import data, engine, evaluation, models
from fcjax.algorithms.ccfc import ccfc
from fcjax.data.augment import ccfc_grey
from fcjax.data.sources import load
from fcjax.types import Grid

NUM_CLIENTS = NUM_CLUSTERS = 10
BATCH_SIZE, LEARNING_RATE, MODEL_WEIGHT = 32, 1e-3, 1e-3
STAGES = ("pretrain", "cluster")


@dataclasses.dataclass(frozen=True)
class Args:
    """Trains one side, or compares what both have left in the file."""

    side: Annotated[Literal["fcjax", "torch", "compare"], tyro.conf.Positional]
    """Which side to train; compare tests the means of what both left."""
    data_dir: Path | None = None
    """Where TFDS data sets are prepared."""
    limit: int = 4000
    """Images of MNIST, dealt to ten clients at p = 0."""
    seed: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    """Of the deal, and of all that a side draws."""
    pretrain_rounds: int = 100
    """Of SimSiam."""
    cluster_rounds: int = 30
    """Of cluster contrast."""
    out: Path = Path("runs/ccfc-beside-torch.csv")
    """A row a side, seed and stage; seeds that it has are not trained again."""


class Problem:
    """The images, and who holds which of them with a seed."""

    def __init__(self, args: Args):
        mnist = data.stratified_subset(
            load("mnist", data_dir=args.data_dir), args.limit
        )
        self.images, self.labels = mnist.examples, mnist.labels

    def deal(self, seed: int) -> data.Partition:
        return data.heterogeneous(self.labels, NUM_CLIENTS, 0.0, seed=seed)

    def score(self, clusters: np.ndarray) -> tuple[float, float]:
        return (
            float(evaluation.nmi(self.labels, clusters)),
            float(evaluation.accuracy(self.labels, clusters)),
        )


def by_fcjax(problem: Problem, args: Args):
    """Yields seed, stage, NMI and ACC of the library's runs."""

    def build(hyper):
        del hyper
        return ccfc(
            models.simsiam(models.conv_encoder((16, 32, 64))),
            optax.adam(LEARNING_RATE),
            ccfc_grey,
            num_clusters=NUM_CLUSTERS,
            pretrain_rounds=args.pretrain_rounds,
            cluster_rounds=args.cluster_rounds,
            batch_size=BATCH_SIZE,
            model_weight=MODEL_WEIGHT,
            own_init=True,
        )

    program = engine.Program(build)
    for seed in args.seed:
        dealt = problem.deal(seed)
        grid = Grid(
            hyper=jnp.zeros(1),
            keys=jax.vmap(jax.random.key)(jnp.array([seed])),
            federations=data.federate(
                problem.images,
                [dealt],
                [np.ones((1, NUM_CLIENTS), bool)],
                num_clusters=NUM_CLUSTERS,
            ),
        )
        rows = np.concatenate(dealt.clients)
        found = []

        def keep(round, grid=grid, rows=rows, found=found):
            if round.is_last and round.stage.name in STAGES:
                clusters = np.empty(len(problem.labels), int)
                assigned = program.assign(grid, round.state)[0]
                clusters[rows] = np.asarray(assigned)[
                    np.asarray(grid.federations.mask[0])
                ]
                found.append((round.stage.name, *problem.score(clusters)))

        program.run(grid, on_round=keep)
        yield from ((seed, *row) for row in found)


def by_torch(problem: Problem, args: Args):
    """Yields seed, stage, NMI and ACC of the loop."""
    import torch  # pyright: ignore[reportMissingImports]
    from speed.ccfc_torch import distance, simsiam

    torch.set_num_threads(1)
    wide = models.simsiam(models.conv_encoder((16, 32, 64)))
    shapes = wide.init(jax.random.key(0), jnp.zeros((1, 28, 28, 1)))
    pixels = torch.from_numpy(problem.images[:, None, :, :, 0] / np.float32(255))

    def network():
        """PyTorch's own initialisation."""
        module = simsiam(shapes, "conv")
        for part in module.modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
        return module

    def view(row):
        array = np.array(_view(problem.images[row, :, :, 0]), np.float32)
        return torch.from_numpy(array / 255)[None]

    def encode(module, rows):
        module.eval()
        with torch.no_grad():
            z = torch.cat([module(pixels[part])[0] for part in rows.split(512)])
        return torch.nn.functional.normalize(z)

    def means_of(points):
        seed = random.getrandbits(32)
        found = KMeans(NUM_CLUSTERS, n_init=10, random_state=seed).fit(points)
        return found.cluster_centers_

    def contrast_examples(module, anchor, rows, labels):
        del labels
        one, two = (torch.stack([view(int(r)) for r in rows]) for _ in range(2))
        with torch.no_grad():
            g1, g2 = anchor(one)[1], anchor(two)[1]
        (z1, p1), (z2, p2) = module(one), module(two)
        contrast = (distance(p1, z2) + distance(p2, z1)) / 2
        return contrast + MODEL_WEIGHT * (distance(p1, g1) + distance(p2, g2)) / 2

    def contrast_clusters(module, anchor, rows, labels):
        with torch.no_grad():
            pull = anchor(pixels[rows])[1]
        z, p = module(pixels[rows])
        unit_p = torch.nn.functional.normalize(p)
        unit_z = torch.nn.functional.normalize(z.detach())
        terms = [
            -(unit_p[labels == c] @ unit_z[labels == c].T).mean()
            for c in range(NUM_CLUSTERS)
            if (labels == c).sum() > 1
        ]
        return torch.stack(terms).mean() + MODEL_WEIGHT * distance(p, pull)

    def epoch(module, anchor, optimizer, loss, rows, labels):
        module.train()
        anchor.eval()
        for batch in torch.randperm(len(rows)).split(BATCH_SIZE):
            optimizer.zero_grad()
            loss(module, anchor, rows[batch], labels[rows[batch]]).backward()
            optimizer.step()

    for seed in args.seed:
        random.seed(seed)
        torch.manual_seed(seed)
        held = [torch.from_numpy(rows) for rows in problem.deal(seed).clients]
        shares = [len(rows) / sum(map(len, held)) for rows in held]
        server, clients = network(), [network() for _ in held]
        labels = torch.zeros(len(problem.labels), dtype=torch.long)
        everything = torch.arange(len(problem.labels))

        def average(server=server, clients=clients, shares=shares):
            states = [client.state_dict() for client in clients]
            server.load_state_dict(
                {
                    name: sum(
                        w * s[name].float() for w, s in zip(shares, states, strict=True)
                    ).to(value.dtype)
                    for name, value in server.state_dict().items()
                }
            )

        def label(clients=clients, held=held, server=server, everything=everything):
            """Local centroids, the server's of them, the nearest by cosine."""
            mined = [
                means_of(encode(c, rows).numpy())
                for c, rows in zip(clients, held, strict=True)
            ]
            centroids = torch.from_numpy(means_of(np.concatenate(mined))).float()
            unit = torch.nn.functional.normalize(centroids)
            return (encode(server, everything) @ unit.T).argmax(dim=1)

        def download(clients=clients, server=server):
            for client in clients:
                client.load_state_dict(server.state_dict())

        for stage, num_rounds in zip(
            STAGES, (args.pretrain_rounds, args.cluster_rounds), strict=True
        ):
            clusters = stage == "cluster"
            loss = contrast_clusters if clusters else contrast_examples
            optimizers = [
                torch.optim.Adam(c.parameters(), lr=LEARNING_RATE) for c in clients
            ]
            if clusters:
                download()
                labels = label()
            for number in range(num_rounds):
                if clusters or number > 0:  # the first networks are unrelated
                    download()
                for client, optimizer, rows in zip(
                    clients, optimizers, held, strict=True
                ):
                    epoch(client, server, optimizer, loss, rows, labels)
                average()
                if clusters or number == num_rounds - 1:
                    labels = label()
            yield seed, stage, *problem.score(labels.numpy())


def _view(image: np.ndarray) -> Image.Image:
    """A view of the authors' recipe, by PIL: crop, rotation, blur."""
    height, width = image.shape
    for _ in range(10):
        area = height * width * random.uniform(0.5, 1.0)
        aspect = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
        if w <= width and h <= height:
            top, left = random.randint(0, height - h), random.randint(0, width - w)
            break
    else:
        top, left, w, h = 0, 0, width, height
    view = Image.fromarray(image).crop((left, top, left + w, top + h))
    view = view.resize((width, height), Image.Resampling.BILINEAR)
    view = view.rotate(random.uniform(-10, 10), Image.Resampling.NEAREST)
    if random.random() < 0.5:
        view = view.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))
    return view


def compare(rows: list[dict[str, str]]) -> None:
    """Prints both sides' scores and how often as large a difference of their means
    comes by chance, over all ways to take the seeds for one side or the other."""
    for stage in STAGES:
        for score in ("nmi", "acc"):
            ours, theirs = (
                np.array(
                    [
                        float(row[score])
                        for row in rows
                        if (row["side"], row["stage"]) == (side, stage)
                    ]
                )
                for side in ("fcjax", "torch")
            )
            test = stats.permutation_test(
                (ours, theirs), lambda a, b: a.mean() - b.mean(), n_resamples=np.inf
            )
            print(f"{stage} {score}, p = {test.pvalue:.3f}")
            for side, values in (("fcjax", ours), ("torch", theirs)):
                print(f"  {side}: mean {values.mean():.3f} of {np.round(values, 3)}")


def main(args: Args) -> None:
    """Adds what is missing of a side to the file, or compares both."""
    rows = []
    if args.out.exists():
        with args.out.open(newline="") as file:
            rows = list(csv.DictReader(file))
    if args.side == "compare":
        return compare(rows)
    done = {int(row["seed"]) for row in rows if row["side"] == args.side}
    args = dataclasses.replace(args, seed=tuple(s for s in args.seed if s not in done))
    side = by_fcjax if args.side == "fcjax" else by_torch
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for seed, stage, nmi, acc in side(Problem(args), args):
        print(
            f"{args.side} seed {seed} {stage}: NMI {nmi:.4f}, ACC {acc:.4f}", flush=True
        )
        is_new = not args.out.exists()
        with args.out.open("a", newline="") as file:
            if is_new:
                file.write("side,seed,stage,nmi,acc\n")
            file.write(f"{args.side},{seed},{stage},{nmi},{acc}\n")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
