import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fcjax.results import tables
from fcjax.results.tables import format_summary, summarize, to_latex, to_text

# 0.812 ± 0.055: the deviation is 0.022, the t quantile 4.303, over sqrt(3).
SEEDS = (0.79, 0.812, 0.834)
RUNS = [
    *[{"data": "my_digits", "p": 0.25, "nmi": x, "paper_nmi": 0.8152} for x in SEEDS],
    {"data": "digits", "p": 1.0, "nmi": 0.9},
    # The paper alone has a score here.
    {"data": "50 % & more", "p": None, "nmi": None, "paper_nmi": 0.0766},
]
SUMMARY = summarize(RUNS, by=("data", "p"), values=("nmi", "acc"))


def test_an_interval_is_that_of_scipy_and_needs_three_seeds():
    values = np.random.default_rng(0).normal(size=7)
    low, high = stats.t.interval(0.95, 6, loc=values.mean(), scale=stats.sem(values))
    assert tables.half_width(values) == pytest.approx((high - low) / 2)
    assert np.isnan(tables.half_width(values[:2]))


def test_summarize_averages_each_setting_beside_the_paper():
    assert list(SUMMARY.index.get_level_values("data")) == [
        *("my_digits", "digits", "50 % & more")
    ]
    assert not any(name.startswith("acc") for name in SUMMARY)  # no run has any
    ours, one, none = SUMMARY.to_dict("records")
    assert ours["nmi"] == np.mean(SEEDS)
    assert ours["nmi_half_width"] == pytest.approx(4.3026527 * 0.022 / np.sqrt(3))
    assert ours["nmi_difference"] == pytest.approx(0.812 - 0.8152)
    assert (one["nmi"], one["nmi_seeds"], none["nmi_seeds"]) == (0.9, 1, 0)
    assert np.isnan([one["nmi_paper"], one["nmi_half_width"], none["nmi"]]).all()
    with pytest.raises(ValueError, match="'scope'"):
        summarize(RUNS, by=("scope",), values=("nmi",))


def test_missing_scores_are_left_out_and_two_seeds_are_written_as_they_are():
    runs = [{"p": 0, "nmi": x, "acc": x} for x in (0.912, 0.8634)]
    runs.append({"p": 0, "nmi": np.nan, "acc": 0.5})
    (line,) = format_summary(summarize(runs, by=("p",), values=("nmi", "acc"))).to_dict(
        "records"
    )
    assert line["nmi"] == "0.863, 0.912"
    assert (line["acc"][:5], line["seeds"]) == ("0.758", 3)


def test_text_and_latex():
    lines = to_text(format_summary(SUMMARY, differences=True)).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[0] == ["data", "p", "nmi", "nmi, paper", "nmi, difference", "seeds"]
    assert cells[2] == ["my_digits", "0.25", "0.812 ± 0.055", "0.815", "-0.003", "3"]
    assert cells[3:] == [
        ["digits", "1", "0.900", "", "", "1"],
        ["50 % & more", "", "", "0.077", "", "0"],
    ]
    assert "paper" not in to_text(format_summary(SUMMARY[1:2]))
    latex = to_latex(format_summary(SUMMARY)).splitlines()
    assert latex[1].endswith("n = 0 to 3")
    assert r"my\_digits & 0.25 & 0.812 $\pm$ 0.055 & 0.815 & 3 \\" in latex
    assert any(line.startswith(r"50 \% \& more") for line in latex)
    # Seeds have no column where their number is the same.
    alike = to_latex(format_summary(SUMMARY[:1]))
    assert "n = 3\n" in alike
    assert r"0.815 \\" in alike
    # A table by hand has no seeds.
    assert "seeds" not in to_latex(pd.DataFrame([{"a": 1.5, "b": None}]))


def test_write_and_full_precision(tmp_path, capsys):
    folder, table = tmp_path / "new" / "folder", format_summary(SUMMARY)
    tables.write(table, folder, ["half the images", "one seed"])
    tables.show(table)
    text = (folder / "table.md").read_text("utf-8")
    assert text == capsys.readouterr().out + "\n- half the images\n- one seed\n"
    assert (folder / "table.tex").read_text("utf-8") == to_latex(table)
