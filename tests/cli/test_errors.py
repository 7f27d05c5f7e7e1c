"""With which status and line a command ends that cannot go on."""

import pytest

from fcjax.cli.errors import exit_on_system_error


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
