"""With which status and line a command ends that cannot go on, and names in lines."""

import pytest

from fcjax.cli.errors import exit_on_system_error, with_flags, with_quoted_flags
from fcjax.data import load


@pytest.mark.parametrize(
    ("error", "checked", "status", "rest"),
    [
        (FileNotFoundError(2, "No such file", "runs/x"), False, 2, "\n"),
        (
            FileNotFoundError(2, "No such file", "runs/x"),
            True,
            1,
            "; finished runs are kept",
        ),
        (OSError(28, "No space left", "runs/x"), False, 1, "; finished runs are kept"),
    ],
)
def test_a_place_is_a_wrong_flag_only_until_it_was_checked(
    error, checked, status, rest, capsys
):
    with pytest.raises(SystemExit) as ended, exit_on_system_error(checked=checked):
        raise error
    assert ended.value.code == status
    assert f"runs/x: {error.strerror}{rest}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["`a`", "`by`", "image_shape", "client_column", "limit"]
)
def test_names_of_data_are_no_flags(name, tmp_path):
    path = tmp_path / f"{name}`limit`.csv"
    path.write_text(f"{name},b,class\nred,1,x\nblue,2,y\n")
    with pytest.raises(ValueError, match="text") as caught:
        load(path)
    line = with_flags(str(caught.value))
    assert line.startswith(f"--dataset {path} has text in 1 feature column: {name} (")
    assert "leave columns out with --drop-columns" in line
    path.write_text(f"{name},b,class\n1,1,0\n2,2,1\n")
    notes = list(map(with_quoted_flags, load(path, label_column=name).notes))
    assert f"first row read as header: {name},b,class" in notes
    assert "column class is a feature; --drop-columns leaves it out" in notes
