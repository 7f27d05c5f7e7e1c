"""What `fit` says of memory beside what a process takes that runs it, on a CPU.

python experiments/benchmarks/predicted_memory.py ccfc --dataset mnist --data-dir DIR
    --preset paper --pretrain-rounds 2 --cluster-rounds 1 --p 0
python experiments/benchmarks/predicted_memory.py SCRIPT FLAGS

The flags are the script's; its first call is taken, with as many rounds of each stage
as they say. The programs' own bytes, of all devices, are added to what a process has
that has loaded the data and the programs and ran none; the peak of one that ran them is
what the system says in the end. Each side has a process, and what the first has
compiled the others load: compiling takes memory too.
"""

import subprocess
import sys
import tempfile

import jax

from fcjax import engine
from fcjax.cli import arguments
from fcjax.data.federation import peak_memory, readable
from fcjax.methods import SCRIPTS
from fcjax.parallel.exact import take_cores
from fcjax.sweep import fit
from fcjax.sweep.experiment import Experiment, prepare

SIDES = ("fit", "before", "run")


def main() -> None:
    script, *flags = sys.argv[1:] or ["--help"]
    if script in ("-h", "--help"):
        sys.exit(__doc__)
    command = [sys.executable, "-m", "experiments.benchmarks.predicted_memory"]
    with tempfile.TemporaryDirectory() as cache:
        said, before, peak = (
            int(subprocess.check_output([*command, side, cache, script, *flags]))
            for side in SIDES
        )
    print(
        f"fit says {readable(said)}; the run took {readable(peak - before)} above the "
        f"{readable(before)} of a process that runs nothing: ratio "
        f"{said / (peak - before):.2f}, of the whole {(said + before) / peak:.2f}"
    )


def side(name: str, cache: str, script: str, flags: list[str]) -> int:
    """Returns the bytes of a side."""
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    take_cores()
    experiment = prepared(script, flags)
    call = next(experiment.batches[0].split())
    devices = jax.local_devices()
    if name != "run":
        each = list(fit.compile_for(devices, call, experiment))
        said = len(devices) * max(fitted.num_bytes for fitted in each)
        return said if name == "fit" else peak_memory()
    program, grid = engine.Program(call.build), call.grid(experiment.pool)
    with jax.default_matmul_precision(experiment.task.options.precision):
        state = program.run(grid)
        jax.block_until_ready((program.assign(grid, state), program.embed(grid, state)))
    return peak_memory()


def prepared(script: str, flags: list[str]) -> Experiment:
    (task, *_) = arguments.read(SCRIPTS[script.replace("_", "-")], flags).tasks
    return prepare(task)


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1] in SIDES:
        print(side(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))
    else:
        main()
