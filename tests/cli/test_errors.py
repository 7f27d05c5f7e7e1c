"""With which status and line a command ends that cannot go on."""

import pytest

from fcjax.cli.errors import in_a_line


@pytest.mark.parametrize(
    ("error", "begun", "status", "rest"),
    [
        (FileNotFoundError(2, "No such file", "runs/x"), False, 2, "\n"),
        (FileNotFoundError(2, "No such file", "runs/x"), True, 1, "; what has ended"),
        (OSError(28, "No space left", "runs/x"), False, 1, "; what has ended"),
    ],
)
def test_a_place_is_a_wrong_flag_only_until_it_was_checked(
    error, begun, status, rest, capsys
):
    with pytest.raises(SystemExit) as ended, in_a_line(begun=begun):
        raise error
    assert ended.value.code == status
    assert f"runs/x: {error.strerror}{rest}" in capsys.readouterr().err
