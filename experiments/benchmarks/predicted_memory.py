"""Compares the memory that `fcjax fit` predicts with a real run's memory, on a CPU.

python experiments/benchmarks/predicted_memory.py ccfc --dataset mnist --data-dir DIR
    --preset paper --pretrain-rounds 2 --cluster-rounds 1 --p 0
python experiments/benchmarks/predicted_memory.py SCRIPT FLAGS

The flags are those of the script. Only its first batch of runs is used, with the number
of rounds in the flags. Three processes measure one number each: `fit` predicts the
bytes of the programs on all devices, `before` has the peak after loading data and
programs without running them, and `run` has the peak of the run. The first process
compiles and the others load the programs from a cache, because compilation takes memory
as well.
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
    """Starts the three processes and prints the predicted and the measured memory."""
    script, *flags = sys.argv[1:] or ["--help"]
    if script in ("-h", "--help"):
        sys.exit(__doc__)
    command = [sys.executable, "-m", "experiments.benchmarks.predicted_memory"]
    with tempfile.TemporaryDirectory() as cache:
        predicted, before, peak = (
            int(subprocess.check_output([*command, side, cache, script, *flags]))
            for side in SIDES
        )
    print(
        f"predicted {readable(predicted)}, measured {readable(peak - before)} (peak "
        f"{readable(peak)} less {readable(before)} before the run); predicted/measured "
        f"{predicted / (peak - before):.2f}, of the whole process "
        f"{(predicted + before) / peak:.2f}"
    )


def side(name: str, cache: str, script: str, flags: list[str]) -> int:
    """Returns the bytes that one of the three processes measures.

    Args:
        name: `fit`, `before` or `run`.
        cache: folder of the compilation cache.
        script: name of the script.
        flags: flags of the script.

    Returns:
        The predicted bytes, or the peak of this process.
    """
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    take_cores()
    experiment = prepare_experiment(script, flags)
    call = next(experiment.batches[0].split())
    devices = jax.local_devices()
    if name != "run":
        programs = list(fit.compile_for(devices, call, experiment))
        predicted = len(devices) * max(fitted.num_bytes for fitted in programs)
        return predicted if name == "fit" else peak_memory()
    program, grid = engine.Program(call.build), call.grid(experiment.pool)
    with jax.default_matmul_precision(experiment.task.options.precision):
        state = program.run(grid)
        jax.block_until_ready((program.assign(grid, state), program.embed(grid, state)))
    return peak_memory()


def prepare_experiment(script: str, flags: list[str]) -> Experiment:
    """Returns the experiment of a script and its flags."""
    (task, *_) = arguments.read(SCRIPTS[script.replace("_", "-")], flags).tasks
    return prepare(task)


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1] in SIDES:
        print(side(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))
    else:
        main()
