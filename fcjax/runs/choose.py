"""Which of several runs to take, without labels: `fcjax choose RUN [RUN ...]`.

choice.csv   a line a run, the best first: what each criterion says of it
choice.png   how far each two of them agree; if all have the same settings of the data
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from fcjax.results import selection, tables
from fcjax.results.results import draw_agreements, gather
from fcjax.results.selection import DEFAULT, Criterion
from fcjax.results.store import parsed
from fcjax.sweep.ending import refusing
from fcjax.sweep.flags import shown
from fcjax.sweep.words import flags_in


@dataclasses.dataclass(frozen=True)
class Args:
    """Ranks finished runs of the same data without labels, and says which to take.

    Heterogeneity, the number and size of the clients, and failures are settings of the
    data, not of the method. There is one choice for each of their values.

    agreement: how far a run agrees with the others, by the adjusted Rand index;
    agreement_nmi: by NMI; consensus: with what all say together, as `fcjax consensus`
    has it. others: its silhouette in the embeddings of the other runs, by rank. input:
    its silhouette among the examples as they are. silhouette: in its own embedding,
    which does not compare runs. loss: the last one, the smaller the better. Where the
    data has labels the rank correlation of each with NMI and ACC is printed, and its
    regret: the best run's NMI less that of the run it takes.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Results folders, --out of the runs."""
    by: Criterion = DEFAULT
    """What decides."""
    where: Annotated[tuple[str, ...], shown("all runs")] = ()
    """Only runs with these values: p=0.25 clusters=10."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    out: Annotated[Path | None, shown("the first folder")] = None
    """Folder of choice.csv and choice.png; written over."""


def main(args: Args) -> None:
    """Raises ValueError with one line where the runs cannot be compared."""
    results = gather(args.runs, parsed(args.where), data_dir=args.data_dir)
    ranks, runs = results.rank(args.by), results.ensemble()
    groups = runs.by_data_setting
    tables_of = [ranks.loc[[i for i in ranks.index if i in group]] for group in groups]
    for table in tables_of:
        best = results[int(table.index[0])]
        print(f"by {args.by}: {best.name}")
        print(f"see it: fcjax page {best.address}")
    out = args.out or args.runs[0]
    out.mkdir(parents=True, exist_ok=True)
    for table in tables_of:
        folders = [Path(folder).name for folder in table["folder"]]
        tables.show(table.assign(folder=folders), ".3f")
        if runs.is_labelled:
            tables.show(selection.against_labels(table), ".3f")
    ranks.to_csv(out / "choice.csv", index=False, float_format="%.6g")
    print(f"all criteria of each run: {out / 'choice.csv'}")
    if len(groups) == 1 and len(ranks) > 1:
        draw_agreements(runs, ranks.index.tolist(), out / "choice.png")
        print(f"agreement of each two runs: {out / 'choice.png'}")


if __name__ == "__main__":
    with refusing():
        main(flags_in(Args))
