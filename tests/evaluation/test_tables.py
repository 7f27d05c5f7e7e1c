import csv
import io
import math

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from fcjax.evaluation.tables import (
    Estimate,
    estimate,
    paper_scores,
    show,
    summarize,
    to_csv,
    to_latex,
    to_text,
    write,
)

ROWS = [
    {"dataset": "digits", "p": "0.0", "seed": 0, "nmi": "0.5", "acc": 0.8},
    {"dataset": "digits", "p": "0.0", "seed": 1, "nmi": "0.7", "acc": None},
    {"dataset": "digits", "p": "1.0", "seed": 0, "nmi": "0.9", "acc": ""},
]
PAPER = {("digits", 0): {"nmi": 0.55}}


def test_interval_by_hand():
    # Deviation 1 over sqrt(3), times the t quantile 4.303 of two degrees of freedom.
    result = estimate([1.0, 2.0, 3.0])
    assert result.mean == 2
    assert result.half_width == pytest.approx(4.3026527 / math.sqrt(3))
    assert result.n == 3


def test_interval_against_scipy():
    values = np.random.default_rng(0).normal(size=7).tolist()
    result = estimate(values)
    low, high = stats.t.interval(
        0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values)
    )
    assert result.half_width is not None
    assert result.mean - result.half_width == pytest.approx(low)
    assert result.mean + result.half_width == pytest.approx(high)


def test_one_seed_has_no_interval():
    assert estimate([0.25]) == Estimate(0.25, None, 1)
    assert str(estimate([0.25])) == "0.250"


def test_nan_is_not_hidden():
    result = estimate([0.5, math.nan])
    assert math.isnan(result.mean)
    assert str(result) == "nan ± nan"
    with pytest.raises(ValueError, match=r"^no values to average$"):
        estimate([])


def test_summarize():
    first, second = summarize(
        ROWS, by=("dataset", "p"), values=("nmi", "acc"), paper=PAPER
    )
    assert (first["dataset"], first["p"], second["p"]) == ("digits", 0, 1)
    # Two seeds: deviation 0.1 sqrt(2), over sqrt(2), times the quantile 12.706.
    assert first["nmi"] == pytest.approx(Estimate(0.6, 1.2706205, 2, 0.55))
    assert first["acc"] == Estimate(0.8, None, 1)
    assert second["nmi"] == Estimate(0.9, None, 1)
    assert "acc" not in second


def test_numbers_and_their_text_are_one_setting():
    rows = [{"p": 0, "nmi": 1.0}, {"p": "0.0", "nmi": "3"}]
    (line,) = summarize(rows, by=("p",), values=("nmi",))
    assert line["nmi"].mean == 2


def test_missing_column():
    with pytest.raises(ValueError, match=r"^no column 'q'; there are: p$"):
        summarize([{"p": 0}], by=("q",), values=("nmi",))


def test_text():
    rows = [{"dataset": "digits", "p": 0.25, "nmi": x} for x in (0.79, 0.812, 0.834)]
    rows += [{"dataset": "mnist", "p": 1.0, "nmi": 0.9}]
    paper = {("mnist", 1.0): {"nmi": 0.9236}}
    summary = summarize(rows, by=("dataset", "p"), values=("nmi",), paper=paper)
    assert to_text(summary).splitlines() == [
        "| dataset |    p |           nmi | nmi, paper | seeds |",
        "|---------|------|---------------|------------|-------|",
        "| digits  | 0.25 | 0.812 ± 0.055 |            |     3 |",
        "| mnist   |    1 |         0.900 |      0.924 |     1 |",
    ]


def test_no_paper_no_column():
    summary = summarize(ROWS, by=("p",), values=("nmi",))
    assert "paper" not in to_text(summary)


def test_show_is_plain_where_the_output_is_no_terminal():
    summary = summarize(ROWS, by=("p",), values=("nmi",), paper={(0.0,): {"nmi": 0.5}})
    pipe = io.StringIO()
    show(summary, console=Console(file=pipe, width=20))
    assert pipe.getvalue() == to_text(summary) + "\n"
    terminal = io.StringIO()
    show(summary, console=Console(file=terminal, force_terminal=True, width=80))
    assert "\x1b[" in terminal.getvalue()
    assert "0.600 ± 1.271" in terminal.getvalue()


def test_latex():
    rows = [
        {"dataset": "mnist_test", "p": 0.25, "nmi": x} for x in (0.79, 0.812, 0.834)
    ]
    rows += [
        {"dataset": "100 % & more", "p": 1.0, "nmi": x} for x in (-0.1, -0.1, -0.1)
    ]
    paper = {("mnist_test", 0.25): {"nmi": 0.9236}}
    summary = summarize(rows, by=("dataset", "p"), values=("nmi",), paper=paper)
    assert to_latex(summary).splitlines() == [
        r"% needs \usepackage{booktabs}",
        "% mean and 95 % Student-t interval over seeds, n = 3",
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        r"dataset & p & nmi & nmi, paper \\",
        r"\midrule",
        r"mnist\_test & 0.25 & $0.812 \pm 0.055$ & $0.924$ \\",
        r"100 \% \& more & 1 & $-0.100 \pm 0.000$ &  \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_latex_has_a_column_of_seeds_where_they_differ():
    summary = summarize(ROWS, by=("p",), values=("nmi",))
    lines = to_latex(summary).splitlines()
    assert lines[1].endswith("over seeds, n = 1 to 2")
    assert lines[4] == r"p & nmi & seeds \\"
    assert lines[6:8] == [r"0 & $0.600 \pm 1.271$ & 2 \\", r"1 & $0.900$ & 1 \\"]


def test_latex_of_special_characters():
    summary = [{"[a]": r"$x_1^2$ ~ {*} \ #"}]
    assert to_latex(summary).splitlines()[3:6] == [
        r"{[}a] \\",
        r"\midrule",
        r"\$x\_1\textasciicircum{}2\$ \textasciitilde{} \{{*}\} \textbackslash{} \# \\",
    ]
    # Nothing is averaged, so no seeds are told.
    assert "seeds" not in to_latex(summary)


def test_nan_of_one_run_is_seen_in_every_table(tmp_path):
    rows = [{"p": 0, "nmi": x} for x in (0.5, "nan", 0.7)]
    write(summarize(rows, by=("p",), values=("nmi",)), tmp_path)
    assert "nan ± nan |     3" in (tmp_path / "table.md").read_text(encoding="utf-8")
    assert r"0 & nan $\pm$ nan \\" in (tmp_path / "table.tex").read_text()


MISSING = {"dataset": "mnist", "p": 1.0, "nmi": Estimate(math.nan, None, 0, 0.0766)}
"""A line of which the paper alone has a figure."""


def compared():
    rows = [{"dataset": "mnist", "p": 0.25, "nmi": x} for x in (0.79, 0.812, 0.834)]
    paper = {("mnist", 0.25): {"nmi": 0.8152}}
    by, values = ("dataset", "p"), ("nmi",)
    return [*summarize(rows, by=by, values=values, paper=paper), MISSING]


def test_differences_stand_behind_the_papers_figures():
    # 0.812 - 0.8152 = -0.0032
    assert to_text(compared(), differences=True).splitlines() == [
        "| dataset |    p |           nmi | nmi, paper | nmi, difference | seeds |",
        "|---------|------|---------------|------------|-----------------|-------|",
        "| mnist   | 0.25 | 0.812 ± 0.055 |      0.815 |          -0.003 |     3 |",
        "| mnist   |    1 |               |      0.077 |                 |     0 |",
    ]
    assert to_latex(compared(), differences=True).splitlines()[6:8] == [
        r"mnist & 0.25 & $0.812 \pm 0.055$ & $0.815$ & $-0.003$ & 3 \\",
        r"mnist & 1 &  & $0.077$ &  & 0 \\",
    ]
    terminal = io.StringIO()
    console = Console(file=terminal, force_terminal=True, width=100)
    show(compared(), console=console, differences=True)
    assert "-0.003" in terminal.getvalue()
    assert "difference" not in to_text(compared())


def test_a_difference_from_nan_is_nan():
    rows, paper = [{"p": 0, "nmi": "nan"}], {(0,): {"nmi": 0.5}}
    summary = summarize(rows, by=("p",), values=("nmi",), paper=paper)
    cells = to_text(summary, differences=True).splitlines()[-1].split("|")
    assert [cell.strip() for cell in cells[1:-1]] == ["0", "nan", "0.500", "nan", "1"]
    assert to_latex(summary, differences=True).splitlines()[6] == (
        r"0 & nan & $0.500$ & nan \\"
    )


def test_csv_is_read_back_in_full_precision():
    ours, missing = csv.DictReader(io.StringIO(to_csv(compared())))
    values = (0.79, 0.812, 0.834)
    assert list(ours) == [
        "dataset",
        "p",
        "nmi",
        "nmi_half_width",
        "nmi_paper",
        "nmi_difference",
        "nmi_seeds",
    ]
    assert float(ours["nmi"]) == np.mean(values)
    # Deviation 0.022 over sqrt(3), times the t quantile 4.303.
    half_width = 4.3026527 * 0.022 / math.sqrt(3)
    assert float(ours["nmi_half_width"]) == pytest.approx(half_width)
    assert float(ours["nmi_difference"]) == pytest.approx(-0.0032)
    assert (ours["nmi_paper"], ours["nmi_seeds"]) == ("0.8152", "3")
    assert missing == {
        "dataset": "mnist",
        "p": "1",
        "nmi": "",
        "nmi_half_width": "",
        "nmi_paper": "0.0766",
        "nmi_difference": "",
        "nmi_seeds": "0",
    }


def test_csv_is_written_beside_differences(tmp_path):
    write(compared(), tmp_path, differences=True)
    assert (tmp_path / "table.csv").read_text() == to_csv(compared()) + "\n"
    assert "-0.003" in (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "-0.003" in (tmp_path / "table.tex").read_text(encoding="utf-8")


def test_write(tmp_path):
    folder = tmp_path / "new" / "folder"
    first, second = (
        summarize([{"p": p, "nmi": 0.5}], by=("p",), values=("nmi",)) for p in (0, 1)
    )
    for summary in (first, second):
        write(summary, folder)
        assert (folder / "table.md").read_text() == to_text(summary) + "\n"
        assert (folder / "table.tex").read_text() == to_latex(summary) + "\n"
    assert {path.name for path in folder.iterdir()} == {"table.md", "table.tex"}


def test_a_write_that_fails_leaves_the_old_tables(tmp_path):
    write(summarize(ROWS, by=("p",), values=("nmi",)), tmp_path)
    before = (tmp_path / "table.md").read_text()
    (tmp_path / "table.tex.tmp").mkdir()
    with pytest.raises(OSError, match=r"table\.tex\.tmp"):
        write(summarize(ROWS, by=("dataset",), values=("acc",)), tmp_path)
    assert (tmp_path / "table.md").read_text() == before


def test_paper_scores_are_those_of_the_rows():
    rows = [
        {"p": "0.0", "seed": "0", "nmi": "0.8", "paper_nmi": "0.92", "paper_kappa": ""},
        {"p": "0.5", "seed": "0", "nmi": "0.7", "paper_nmi": "", "paper_kappa": ""},
    ]
    found = paper_scores(rows, by=["p"], values=["nmi", "kappa", "acc"])
    assert found == {(0.0,): {"nmi": 0.92}}
