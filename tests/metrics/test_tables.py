import csv
import io
import math

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from fcjax.results import tables
from fcjax.results.tables import Estimate, summarize, to_csv, to_latex, to_text

ROWS = [
    {"dataset": "digits", "p": "0.0", "seed": 0, "nmi": "0.5", "acc": 0.8},
    {"dataset": "digits", "p": "0.0", "seed": 1, "nmi": "0.7", "acc": None},
    {"dataset": "digits", "p": 1, "seed": 0, "nmi": "0.9", "acc": ""},
    {"dataset": "digits", "p": "1.0", "seed": 0, "nmi": 0.9, "acc": ""},
]


def test_an_interval_is_that_of_scipy_and_of_one_seed_there_is_none():
    values = np.random.default_rng(0).normal(size=7).tolist()
    mean, half_width, *rest = tables.estimate(values)
    expected = stats.t.interval(0.95, 6, loc=np.mean(values), scale=stats.sem(values))
    assert (mean - half_width, mean + half_width) == pytest.approx(expected)
    assert rest == [7, None, ()]
    assert tables.estimate([0.25]) == Estimate(0.25, None, 1)


def test_summarize():
    """Numbers and their text are one setting."""
    options = {"by": ("dataset", "p"), "values": ("nmi", "acc")}
    first, second = summarize(ROWS, **options, paper={("digits", 0): {"nmi": 0.55}})
    assert (first["dataset"], first["p"], second["p"]) == ("digits", 0, 1)
    assert first["nmi"] == Estimate(0.6, None, 2, 0.55, (0.5, 0.7))
    assert first["acc"] == Estimate(0.8, None, 1)
    assert second["nmi"] == Estimate(0.9, None, 2, values=(0.9, 0.9))
    assert "acc" not in second


# 0.812 ± 0.055: the deviation is 0.022, the t quantile 4.303, over sqrt(3).
SEEDS = (0.79, 0.812, 0.834)
RUNS = [{"dataset": "my_digits", "p": 0.25, "nmi": x} for x in SEEDS]
RUNS.append({"dataset": "digits", "p": 1.0, "nmi": 0.9})
PAPER = {("my_digits", 0.25): {"nmi": 0.8152}}
SUMMARY = summarize(RUNS, by=("dataset", "p"), values=("nmi",), paper=PAPER)
# Of this one the paper alone has a figure.
UNKNOWN = Estimate(math.nan, None, 0, 0.0766)
SUMMARY.append({"dataset": "50 % & more", "p": 1.0, "nmi": UNKNOWN})


def test_text():
    # 0.812 - 0.8152 = -0.0032
    assert to_text(SUMMARY, differences=True).splitlines() == [
        "| dataset     |    p |           nmi | nmi, paper | nmi, difference | seeds |",
        "|-------------|------|---------------|------------|-----------------|-------|",
        "| my_digits   | 0.25 | 0.812 ± 0.055 |      0.815 |          -0.003 |     3 |",
        "| digits      |    1 |         0.900 |            |                 |     1 |",
        "| 50 % & more |    1 |               |      0.077 |                 |     0 |",
    ]
    assert "difference" not in to_text(SUMMARY)
    assert "paper" not in to_text(SUMMARY[1:2])


def test_show_is_plain_where_the_output_is_no_terminal():
    pipe, terminal = io.StringIO(), io.StringIO()
    plain = Console(file=pipe, width=20)
    ruled = Console(file=terminal, force_terminal=True, width=100)
    for console in (plain, ruled):
        tables.show(SUMMARY, console=console, differences=True)
    assert pipe.getvalue() == to_text(SUMMARY, differences=True) + "\n"
    for text in ("\x1b[", "0.812 ± 0.055", "-0.003"):
        assert text in terminal.getvalue()


def test_latex():
    assert to_latex(SUMMARY, differences=True).splitlines() == [
        r"% needs \usepackage{booktabs}",
        "% mean and 95 % Student-t interval over seeds, n = 0 to 3",
        r"\begin{tabular}{lrrrrr}",
        r"\toprule",
        r"dataset & p & nmi & nmi, paper & nmi, difference & seeds \\",
        r"\midrule",
        r"my\_digits & 0.25 & $0.812 \pm 0.055$ & $0.815$ & $-0.003$ & 3 \\",
        r"digits & 1 & $0.900$ &  &  & 1 \\",
        r"50 \% \& more & 1 &  & $0.077$ &  & 0 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    # Seeds have no column where their number is the same.
    lines = to_latex(SUMMARY[:1]).splitlines()
    assert lines[1].endswith("over seeds, n = 3")
    assert lines[4] == r"dataset & p & nmi & nmi, paper \\"
    assert lines[6] == r"my\_digits & 0.25 & $0.812 \pm 0.055$ & $0.815$ \\"


def test_two_seeds_are_written_as_their_values_and_have_no_interval():
    rows = [{"p": 0, "nmi": x} for x in (0.912, 0.8634)]
    summary = summarize(rows, by=("p",), values=("nmi",))
    assert to_text(summary).splitlines()[-1] == "| 0 | 0.912, 0.863 |     2 |"
    assert r"0 & $0.912, 0.863$ \\" in to_latex(summary)
    (line,) = csv.DictReader(io.StringIO(to_csv(summary)))
    assert float(line["nmi"]) == pytest.approx(0.8877)
    assert line["nmi_half_width"] == ""


def test_latex_of_special_characters():
    found = to_latex([{"[a]": r"$x_1^2$ ~ {*} \ #"}])
    expected = r"\$x\_1\textasciicircum{}2\$ \textasciitilde{} \{{*}\} "
    assert found.splitlines()[3] == r"{[}a] \\"
    assert found.splitlines()[5] == expected + r"\textbackslash{} \# \\"
    # Nothing is averaged, so no seeds are told.
    assert "seeds" not in found


def test_nan_of_a_run_is_seen_in_every_table_and_in_the_difference():
    rows = [{"p": 0, "nmi": x} for x in (0.5, "nan", 0.7)]
    summary = summarize(rows, by=("p",), values=("nmi",))
    assert "nan ± nan |     3" in to_text(summary)
    assert r"0 & nan $\pm$ nan \\" in to_latex(summary)
    paper = {(0,): {"nmi": 0.5}}
    summary = summarize(rows[1:2], by=("p",), values=("nmi",), paper=paper)
    cells = to_text(summary, differences=True).splitlines()[-1].split("|")
    assert [cell.strip() for cell in cells[1:-1]] == ["0", "nan", "0.500", "nan", "1"]
    found = to_latex(summary, differences=True).splitlines()[6]
    assert found == r"0 & nan & $0.500$ & nan \\"


def test_csv_is_read_back_in_full_precision():
    ours, _, missing = csv.DictReader(io.StringIO(to_csv(SUMMARY)))
    nothing = {"nmi": "", "nmi_half_width": "", "nmi_difference": ""}
    known = {"p": "1", "nmi_paper": "0.0766", "nmi_seeds": "0"}
    assert missing == {"dataset": "50 % & more"} | known | nothing
    assert list(ours) == [
        *("dataset", "p", "nmi", "nmi_half_width"),
        *("nmi_paper", "nmi_difference", "nmi_seeds"),
    ]
    assert float(ours["nmi"]) == np.mean(SEEDS)
    half_width = 4.3026527 * 0.022 / math.sqrt(3)
    assert float(ours["nmi_half_width"]) == pytest.approx(half_width)
    assert float(ours["nmi_difference"]) == pytest.approx(-0.0032)
    assert (ours["nmi_paper"], ours["nmi_seeds"]) == ("0.8152", "3")


@pytest.mark.parametrize("differences", [False, True])
def test_write(tmp_path, differences):
    folder, options = tmp_path / "new" / "folder", {"differences": differences}

    def written():
        return {x.name: x.read_text("utf-8") for x in folder.iterdir()}

    for summary in (SUMMARY[1:], SUMMARY):
        tables.write(summary, folder, **options)
        expected = {
            "table.md": to_text(summary, **options),
            "table.tex": to_latex(summary, **options),
            **({"table.csv": to_csv(summary)} if differences else {}),
        }
        expected = {name: text + "\n" for name, text in expected.items()}
        assert written() == expected
    tables.write(SUMMARY, folder, **options, notes=["half the images", "one seed"])
    assert written() == expected | {
        "table.md": expected["table.md"] + "\n- half the images\n- one seed\n"
    }
    tables.write(SUMMARY, folder, **options)
    # One that fails leaves the old tables.
    blocked = folder / "table.tex.tmp"
    blocked.mkdir()
    with pytest.raises(OSError, match=r"table\.tex\.tmp"):
        tables.write(SUMMARY[1:], folder, **options)
    blocked.rmdir()
    assert written().items() >= expected.items()


def test_paper_scores_are_those_of_the_rows():
    told = {"0.0": "0.92", "0.5": ""}
    rows = [
        {"p": p, "nmi": 1, "paper_nmi": x, "paper_kappa": ""} for p, x in told.items()
    ]
    found = tables.paper_scores(rows, by=["p"], values=["nmi", "kappa", "acc"])
    assert found == {(0.0,): {"nmi": 0.92}}
