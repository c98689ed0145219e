"""`python -m benchmarks.peers cost` and `python -m benchmarks.peers zoo`."""

import argparse
import importlib
import os
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("wandb", "tensorboard", "torchmortem", "neural-observatory", "trainpulse",
            "torch-audit", "neuraldbg")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    cost = commands.add_parser("cost", help="what watching costs a training step")
    cost.add_argument("--models", default="mlp,gpt,resnet", help="of mlp, gpt, resnet")
    cost.add_argument("--rounds", type=int, default=4, help="measured steps of each peer")
    zoo = commands.add_parser("zoo", help="what each finds in labelled trainings")
    zoo.add_argument("--families", type=int, help="at most so many of the report half")
    zoo.add_argument("--seeds", type=int, default=1, help="trials of each family")
    zoo.add_argument("--first-seed", type=int, default=1000)
    zoo.add_argument("--verbose", action="store_true", help="what each said of each training")
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {installed()}")
    chosen = importlib.import_module(f"benchmarks.peers.{given.command}")
    if given.command == "cost":
        chosen.main(given.models.split(","), given.rounds)
    else:
        seeds = range(given.first_seed, given.first_seed + given.seeds)
        chosen.main(given.families, seeds, verbose=given.verbose)


def installed() -> str:
    """Names and versions, or that a package is not there."""
    found = []
    for name in ("torch", *PACKAGES):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} not installed")
    return ", ".join(found)


if __name__ == "__main__":
    main()
