"""Wrong commands, of every script and tool: one line, exit status 2, nothing written.

Each is run as `fcjax NAME FLAGS` in this process. {run} is a finished run of
experiments/spherical.py, {notes} a text, {empty} a folder with nothing in it.
"""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from fcjax.cli import commands
from fcjax.cli.commands import programs
from fcjax.methods import SCRIPTS
from fcjax.sweep import train

ROOT = Path(__file__).parents[2]
TOOLS = dict.fromkeys(
    ["choose", "consensus", "draw", "export", "how-many", "privacy", "probe", "report"],
    "",
)
TOOLS |= {"compare": "gone", "predict": "--dataset digits", "deploy": "--to {empty}"}
"""What each takes beside a run."""

WHOLE = (
    "takes whole numbers or ranges START:END without END, such as 0:16, "
    "at most 10,000 numbers"
)
ANY = (
    "takes numbers or ranges START:END:STEP with END, such as 0:1:0.25, "
    "at most 10,000 numbers"
)
LEAST, ABOVE = "must be at least 1, got 0", "must be above 0, got 0"
RULES = "are two partition rules; give only one"
UNLABELLED = "--no-labels --clusters 2"
NO_RUN = "holds no run: config.json is missing"

COMMANDS = [
    # What is no word of a command at all.
    ("cfcc", "unknown command 'cfcc'; did you mean ccfc?"),
    ("tables", "unknown command 'tables'; `fcjax --help` lists all commands"),
    ("fit ccfc", "fit needs a method and --on DEVICES, for example: fcjax fit"),
    ("fit nothing --on v5e:2x2", "fcjax: error: unknown command 'nothing'"),
    ("deploy gone", "deploy needs a method or a run, and --to FOLDER, for example"),
    ("deploy baselines --to {empty} --dataset {rows}", "--to takes one method, got 4"),
    (
        "deploy ccfc --to {empty} --dataset {rows} --clients 3 --seed 0 1",
        "a federation is one run, but there are 2",
    ),
    ("partition", "--out is missing; see --help"),
    (
        "partition --out new --client 3",
        "unknown flag --client; did you mean --clients?",
    ),
    ("partition --out {run}", "--out {run} must be new or an empty folder"),
    ("partition --out new --overlap 0.5", "--overlap gives an example to several"),
    ("partition --out new --dataset {rows} --p 2", "--p must lie in [0, 1], got 2"),
    (
        "partition --out new --dataset {rows} --no-labels --alpha 1",
        "--alpha requires labels, but {rows} has none; give --p 0",
    ),
    ("ccfc digits", "'digits' belongs to no flag"),
    ("ccfc --client 10", "unknown flag --client; did you mean --clients?"),
    (
        "ccfc --learning-rat 1",
        "unknown flag --learning-rat; did you mean --learning-rate?",
    ),
    ("fedmcc --cluster 3", "unknown flag --cluster; did you mean --clusters?"),
    ("ccfc --seeds 1", "unknown flag --seeds; did you mean --seed?"),
    (
        "ccfc --resume yes",
        "'yes' belongs to no flag, because flags such as --resume take no value",
    ),
    ("ccfc --preset fast", "--preset takes smoke, default or paper"),
    ("ccfc --split dev", "--split takes all, train or test"),
    ("ccfc --failures some", "--failures takes fixed or per-round"),
    ("ccfc --pool ram", "--pool takes auto, device or host"),
    ("ccfc --backend gpu", "--backend takes shard_map, pmap or loop"),
    (
        "ccfc --precision double",
        "--precision takes highest, high, default or bfloat16, got 'double'",
    ),
    ("ccfc --backbone vgg", ", got 'vgg'"),
    (
        "ccfc --dataset {rows} --view crop",
        "--view crop needs grey images, the examples have",
    ),
    (
        "ccfc --dataset {rows} --backbone conv-small",
        "--backbone conv-small does not take feature vectors",
    ),
    ("fedmcc --optimizer rms", "--optimizer takes adam or sgd, got 'rms'"),
    ("ccfc --view zoom", "--view takes affine or crop, got 'zoom'"),
    ("ccfc --log mlflow", "--log takes tensorboard or wandb, got 'mlflow'"),
    ("ccfc --limit many", "--limit"),
    ("ccfc --out", "Missing value for argument '--out'"),
    # Numbers and ranges of them.
    (
        "ccfc --p",
        "--p takes numbers or ranges START:END:STEP with END",
    ),
    ("ccfc --p --seed 1", "such as 0:1:0.25, got nothing"),
    ("ccfc --p half", f"--p {ANY}; got 'half'"),
    ("ccfc --p 0,0.5", f"--p {ANY}; got '0,0.5'"),
    ("ccfc --p=", f"--p {ANY}; got ''"),
    ("ccfc --p 0:1", f"--p {ANY}; got '0:1'"),
    ("ccfc --p 0:1:0", f"--p {ANY}; got '0:1:0'"),
    ("ccfc --p 1:0:0.25", f"--p {ANY}; got '1:0:0.25'"),
    ("ccfc --p 0:1:nan", f"--p {ANY}; got '0:1:nan'"),
    ("ccfc --p 0:inf:1", f"--p {ANY}; got '0:inf:1'"),
    ("ccfc --p 0:1:1e-9", f"--p {ANY}; got '0:1:1e-9'"),
    ("ccfc --p 0:1:0.25:1", f"--p {ANY}; got '0:1:0.25:1'"),
    ("ccfc --model-weight=0:1", f"--model-weight {ANY}; got '0:1'"),
    ("ccfc --seed 1.5", f"--seed {WHOLE}; got '1.5'"),
    ("ccfc --seed 4:4", f"--seed {WHOLE}; got '4:4'"),
    ("ccfc --seed 0:", f"--seed {WHOLE}; got '0:'"),
    ("ccfc --seed 0:1000000000", f"--seed {WHOLE}; got '0:1000000000'"),
    ("ccfc --batch_size=1:2:0", f"--batch-size {WHOLE}; got '1:2:0'"),
    ("ccfc --p 0:2:0.5", "--p must lie in [0, 1], got 1.5"),
    ("ccfc --p nan", "--p must lie in [0, 1], got nan"),
    ("ccfc --seed 0:4 2", "--seed takes one or more different values"),
    ("ccfc --seed -1", "--seed must be at least 0, got -1"),
    ("ccfc --partition-seed -1", "--partition-seed must be at least 0, got -1"),
    ("ccfc --seed 2147483648", "--seed must be at most 2147483647, got 2147483648"),
    # A run's own file.
    ("ccfc --config", "Missing value for argument '--config'"),
    ("ccfc --config gone.json", "--config gone.json: No such file or directory"),
    ("ccfc --config {empty}", "--config {empty}: Is a directory"),
    ("ccfc --config {notes}", "--config {notes} is not the config.json of a run"),
    ("ccfc --config {run}/config.json", "belongs to a run of spherical, not of ccfc"),
    ("spherical --config {later}", "has unknown settings: wings"),
    ("spherical --config {run}/config.json --p 2", "--p must lie in [0, 1], got 2.0"),
    # Data.
    ("ccfc --dataset gone.npz", "--dataset gone.npz does not exist"),
    ("ccfc --dataset {notes}", "--dataset {notes} has 0 examples; at least 2 examples"),
    ("ccfc --dataset {empty}", "--dataset {empty} has no image"),
    ("ccfc --dataset no_such_set", "--dataset no_such_set is unknown"),
    ("ccfc --dataset mnist --data-dir {empty}", "--dataset mnist"),
    ("ccfc --image-shape 8", "--image-shape"),
    (
        "ccfc --image-shape 4 4",
        "--image-shape is only for files, but the data set is digits",
    ),
    ("ccfc --resize 0", "--resize"),
    ("ccfc --limit 0", "--limit"),
    ("ccfc --limit 1", "error: --limit must be at least 2 and at most the number of"),
    ("ccfc --max-clients 0", "error: --max-clients must be at least 1, got 0"),
    ("ccfc --limit -3", "--limit"),
    ("ccfc --limit 9999", "--limit"),
    ("ccfc --extra-split unlabelled", "--extra-split"),
    ("ccfc --split test", "--split"),
    # Clients: what dealing itself refuses is in tests/data/test_refused.py.
    ("ccfc --clients 0", "--clients must be at least 1, got 0"),
    ("ccfc --clients -2", "--clients must be at least 1, got -2"),
    ("ccfc --clients 5000", "--clusters 10 with --clients 5000 require at least 50000"),
    ("ccfc --clusters 1", "--clusters must be at least 2, got 1"),
    ("ccfc --alpha 0", "--alpha must be"),
    ("ccfc --alpha -1", "--alpha must be"),
    ("ccfc --class-share 0", "--class-share"),
    ("ccfc --classes-per-client 11", "--classes-per-client"),
    ("ccfc --overlap 2", "--overlap"),
    ("ccfc --alpha 1 --overlap 0", f"--alpha and --overlap {RULES}"),
    ("ccfc --class-range 2 3", "--class-range requires --overlap"),
    ("ccfc --overlap 0 --class-range 3", "--class-range"),
    ("ccfc --overlap 0 --class-range 5 2", "--class-range"),
    ("ccfc --overlap 0 --samples-per-class 0", "--samples-per-class"),
    ("ccfc --client-size 3", "--client-size must be at least --clusters 10, got 3"),
    ("ccfc --failure-rate 1", "--failure-rate 1.0 makes all 10 clients fail"),
    ("ccfc --failure-rate -0.1", "--failure-rate"),
    ("ccfc --no-labels", "--clusters is required for data without labels"),
    # What is run, and where.
    ("ccfc --evaluate-every 0", "--evaluate-every must be at least 1, got 0"),
    ("ccfc --runs-per-call 0", "--runs-per-call must be at least 1, got 0"),
    (
        "ccfc --checkpoint-interval -1",
        "--checkpoint-interval must be at least 0, got -1.0",
    ),
    ("ccfc --checkpoint-interval nan", "--checkpoint-interval must be at least 0"),
    ("ccfc --shard 1", "--shard must be i/n with i from 0 to n - 1, got '1'"),
    ("ccfc --shard 3/2", "--shard must be i/n with i from 0 to n - 1, got '3/2'"),
    ("ccfc --shard 1/2", "--shard 1/2 has no run, since the grid has 1 runs"),
    ("ccfc --process 0/2", "--process needs --coordinator HOST:PORT"),
    ("ccfc --coordinator here", "--coordinator must be auto or HOST:PORT, got 'here'"),
    ("ccfc --coordinator h:1", "--coordinator HOST:PORT needs --process i/n"),
    ("ccfc --coordinator h:1 --process 2", "--process must be i/n"),
    (
        "ccfc --coordinator h:1 --shard 0/2",
        "give --shard or --coordinator, not both",
    ),
    ("ccfc --on v9:2x2", "--on must be a TPU (v5e, v5p, v6e) with a shape"),
    ("fit ccfc --on h100", "--on must be a TPU (v5e, v5p, v6e) with a shape"),
    ("ccfc --out {notes}", "--out {notes} cannot be written (File exists)"),
    (
        "ccfc --out {notes}/a",
        "--out {notes}/a cannot be written (Not a directory)",
    ),
    ("ccfc --out {run}", "--out {run} holds results of another configuration"),
    ("ccfc --out {damaged}", "{damaged}/config.json is damaged: it is not JSON"),
    # Each method's own.
    ("ccfc --local-epochs 0", f"--local-epochs {LEAST}"),
    ("ccfc --batch-size -4", "--batch-size must be at least 1, got -4"),
    ("ccfc --learning-rate inf", "--learning-rate must be finite and at least 0"),
    (
        "ccfc --pretrain-rounds 0 --cluster-rounds 0",
        "--pretrain-rounds and --cluster-rounds must not both",
    ),
    ("ccfc --backbone mlp", "--backbone mlp does not take images"),
    ("ccfc --own-init maybe", "--own-init"),
    (
        "baselines --methods",
        "--methods needs at least one of km, fcm, k-fed",
    ),
    (
        "baselines --methods km km",
        "--methods takes each method once, got km km",
    ),
    (
        "baselines --methods kmeans",
        "exact-km or exact-fcm, got 'kmeans'",
    ),
    ("baselines --local-clusters 11", "--local-clusters must be at most --clusters 10"),
    ("baselines --fuzzifier 1", "--fuzzifier must be above 1, got 1.0"),
    ("baselines --num-init 0", f"--num-init {LEAST}"),
    ("fdsc --num-participants 6", "--num-participants must be at most --clients 5"),
    ("fdsc --num-rounds 0", f"--num-rounds {LEAST}"),
    ("fdsc --local-steps 0", f"--local-steps {LEAST}"),
    ("fdsc --post-processing --keep 0", f"--keep {ABOVE}"),
    ("fdsc --post-processing --power 0", f"--power {ABOVE}"),
    ("fdsc --pixel-scale 0", f"--pixel-scale {ABOVE}"),
    ("fdsc --methods", "--methods needs at least one of fdsc2"),
    ("fdsc --norm l2", ", got 'l2'"),
    ("fedcref --methods dec dec", "--methods takes each method once, got dec dec"),
    ("fedcref --dirtiness 0.3", "--dirtiness needs --start dirty, got dec"),
    ("fedcref --threshold 1.5", "--threshold must be at most 1, got 1.5"),
    ("fedcref --percentile 101", "--percentile must be at most 100, got 101"),
    ("fedcref --stability 2", "--stability must be at most 1, got 2"),
    ("fedcref --start dirty --dirtiness 2", "--dirtiness must be at most 1, got 2"),
    ("fedcref --num-rounds 0", f"--num-rounds {LEAST}"),
    ("fedcref --federated-rounds 0", f"--federated-rounds {LEAST}"),
    ("fedcref --pretrain-rounds 0", f"--pretrain-rounds {LEAST}"),
    ("fedcref --max-members 0", f"--max-members {LEAST}"),
    ("fedcref --max-refinements 0", "--max-refinements must be finite and at least 1"),
    ("fedcref --methods uifca --local-steps 0", f"--local-steps {LEAST}"),
    (f"fedcref {UNLABELLED} --start dirty", "--start dirty needs labels"),
    (
        f"fedcref {UNLABELLED} --associations perfect",
        "--associations perfect needs labels",
    ),
    ("fedcref --overlap 0 --alpha 1", RULES),
    ("ccfc --p 0.5 --alpha 1", f"--p and --alpha {RULES}"),
    ("fedcref --p 0.5 --class-range 2 3", "--class-range requires --overlap"),
    ("fedmcc --methods mcc --momentum 1.5", "--momentum must be at most 1, got 1.5"),
    ("fedmcc --instance-temperature 0.5 0", f"--instance-temperature {ABOVE}"),
    ("fedmcc --cluster-temperature 0", f"--cluster-temperature {ABOVE}"),
    ("fedmcc --cluster-rounds 0", f"--cluster-rounds {LEAST}"),
    ("fedmcc --methods cc --microbatch 0", f"--microbatch {LEAST}"),
    ("fedmcc --optimizer lion", "--optimizer takes adam or sgd, got 'lion'"),
    ("sda-fdc --methods sda-fc-fcm --fuzzifier 1.5 1", "--fuzzifier must be above 1"),
    ("sda-fdc --gan-rounds 0", f"--gan-rounds {LEAST}"),
    ("sda-fdc --methods dcn --pretrain-rounds 0", f"--pretrain-rounds {LEAST}"),
    ("sda-fdc --methods dcn --refresh-every 0", f"--refresh-every {LEAST}"),
    ("sda-fdc --methods sda-fc-km --num-synthetic 0", f"--num-synthetic {LEAST}"),
    ("orchestra --temperature 0", f"--temperature {ABOVE}"),
    ("orchestra --momentum 2", "--momentum must be at most 1, got 2.0"),
    ("orchestra --num-participants 11", "--num-participants"),
    ("orchestra --num-global 0", f"--num-global {LEAST}"),
    ("orchestra --memory-size 0", f"--memory-size {LEAST}"),
    ("spherical --momentum -1", "--momentum must be finite and at least 0, got -1.0"),
    # Tables of papers, shards, the ledger.
    ("reproduce", "is missing; see --help"),
    ("reproduce ccfc-tabel2", "the nearest is ccfc-table2"),
    ("reproduce ccfc-table1 --seed 0:", f"--seed {WHOLE}; got '0:'"),
    ("reproduce ccfc-table1 --methods SCFC", "--methods takes"),
    ("reproduce ccfc-table1 --datasets cifar100", "--datasets takes digits"),
    ("reproduce ccfc-table1 --preset default", ", got 'default'"),
    ("reproduce ccfc-table1 --from gone", "gone"),
    ("reproduce ccfc-table1 --limit 0", "--limit"),
    ("reproduce ccfc-table1 --preset paper --data-dir {empty}", "--datasets"),
    ("collect", "at least one results folder is required; see --help"),
    ("collect {empty}", "{empty} holds neither results nor shards of a grid"),
    ("collect {run}", "--out is required, because the folders are not the shards"),
    ("collect gone", "gone holds neither results nor shards of a grid"),
    ("keep", "no results folder is given: name one or more"),
    ("ledger read", "action takes write, got 'read'"),
    ("keep gone", f"gone {NO_RUN}"),
    ("keep gone --name a/b", "--name takes letters, digits and .+-_, got 'a/b'"),
    # Tools for finished runs.
    *((f"{tool} gone {rest}", f"gone {NO_RUN}") for tool, rest in TOOLS.items()),
    ("draw {run} --where p", "--where takes p=VALUE"),
    ("draw {run} --where q=1", "--where takes p=VALUE"),
    ("export {run} --where p=7", "no run of {run} has p=7"),
    ("report {run} --where seed=x", "--where takes p=VALUE"),
    ("report {damaged}", "{damaged}/config.json is damaged: it is not JSON"),
    ("report {cut}", "{cut}"),
    ("draw {cut}", "{cut}"),
    ("predict {cut} --dataset {rows}", "{cut}"),
    ("export {run} --out {notes}", "{notes}"),
    ("draw {run} --out {notes}", "{notes}"),
    ("predict {run}", "--dataset"),
    ("predict {run} --dataset gone.npz", "--dataset gone.npz does not exist"),
    (
        "predict {run} --dataset digits",
        "examples of shape (8, 8, 1) do not fit a model",
    ),
    ("predict {run} --dataset {rows} --out {notes}/a", "{notes}"),
    (
        "probe {run} --num-neighbors 0",
        "--num-neighbors must lie in 1..50, the number of training examples, got 0",
    ),
    ("probe {run} --label-fraction 2", "--label-fraction"),
    ("probe {run} --num-draws 0", "--num-draws"),
    ("privacy {run}", "again with --keep-uploads and --no-resume"),
    ("privacy {run} --where p=7", "no run of {run} has p=7"),
    ("choose", "at least one results folder is required"),
    ("choose {run} --by luck", ", got 'luck'"),
    (
        "choose {run} --by agreement",
        "--by agreement needs 2 runs that ended well, got 1",
    ),
    ("compare {run}", "SECOND is missing; give a second folder, or --between"),
    ("compare {run} {run} --score glory", "--score"),
    ("compare {run} {run}", "both sides are the same runs"),
    ("consensus {run}", "1 of 1 runs ended well, and at least two are needed"),
    ("how-many {run}", "1 of 1 runs ended well, and at least two are needed"),
]


@pytest.fixture(scope="module")
def places(runs, tmp_path_factory):
    """What the commands name, by {name}."""
    folder = tmp_path_factory.mktemp("places")
    found = {"run": runs / "runs" / "spherical", "rows": runs / "rows.npz"}
    made = {x: folder / x for x in ("empty", "damaged", "cut", "notes", "later")}
    made["notes"] = folder / "notes.txt"
    made["empty"].mkdir()
    made["notes"].write_text("as said\n")
    for name in ("damaged", "cut"):
        shutil.copytree(found["run"], made[name])
    config = made["damaged"] / "config.json"
    told = json.loads(config.read_text())
    told["command"]["flags"]["wings"] = [2]
    made["later"].write_text(json.dumps(told))
    config.write_text(config.read_text()[:100])
    for path in made["cut"].rglob("*.npz"):
        path.write_bytes(path.read_bytes()[:100])
    return {**found, **made}


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def refused(line, monkeypatch, capsys):
    """Runs a command, and returns what it says on its end; it is not let train."""

    def trains(*_, **__):
        raise AssertionError(f"{line} is taken for right")

    monkeypatch.setattr(train, "execute", trains)
    monkeypatch.setattr(sys, "argv", ["fcjax", *shlex.split(line)])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", commands)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        commands.main()
    printed, said = capsys.readouterr()
    assert ended.value.code == 2, said
    assert "Traceback" not in printed + said
    assert re.fullmatch(r"fcjax( [a-z_-]+)?: error: .+\n", said), said
    return said


@pytest.mark.parametrize(("line", "told"), COMMANDS, ids=lambda text: text)
def test_a_wrong_command_gets_one_line_and_writes_nothing(
    line, told, places, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    before = {x: files(path) for x, path in places.items() if path.is_dir()}
    said = refused(line.format(**places), monkeypatch, capsys)
    assert told.format(**places) in said
    assert files(tmp_path) == {}
    assert {x: files(path) for x, path in places.items() if path.is_dir()} == before


@pytest.mark.parametrize("name", [*SCRIPTS, *programs(ROOT / "experiments"), *TOOLS])
def test_a_flag_that_no_command_has_is_refused_by_all(name, monkeypatch, capsys):
    rest = f"gone {TOOLS[name]}" if name in TOOLS else ""
    rest = {"reproduce": "ccfc-table1", "ledger": "write"}.get(name, rest)
    said = refused(f"{name} {rest} --wings 2", monkeypatch, capsys)
    assert "unknown flag --wings" in said


def test_the_table_has_a_line_for_every_script_and_tool():
    named = {line.split()[0] for line, _ in COMMANDS}
    listed = {*SCRIPTS, *commands.TOOLS, *commands.PLANNING}
    listed |= {*programs(ROOT / "experiments")}
    assert listed <= named
    assert len(COMMANDS) > 100
