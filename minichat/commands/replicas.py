"""The options of `minichat serve` for several engines."""

import argparse

from engine.api.errors import BadInput

_MOST = 64  # engines


def check_replicas(options: argparse.Namespace) -> None:
    if not 1 <= options.replicas <= _MOST:
        raise BadInput(f"--replicas must be from 1 to {_MOST}, got {options.replicas}")
    _check_scaling(options)
    if options.prefill_gpus is not None or options.decode_gpus is not None:
        _check_apart(options)


def _check_scaling(options: argparse.Namespace) -> None:
    least, most, target = options.min_replicas, options.replicas, options.target_requests
    if least is None and target is not None:
        raise BadInput("--target-requests has no effect without --min-replicas")
    if least is not None and not 1 <= least <= most:
        raise BadInput(f"--min-replicas must be from 1 to --replicas, which is {most}; got {least}")
    if target is not None and target < 1:
        raise BadInput(f"--target-requests must be at least 1, got {target}")


def _check_apart(options: argparse.Namespace) -> None:
    prompts, replies = options.prefill_gpus, options.decode_gpus
    if prompts is None or replies is None:
        raise BadInput("--prefill-gpus and --decode-gpus must be used together")
    if prompts < 1 or replies < 1 or prompts + replies > _MOST:
        raise BadInput(
            f"--prefill-gpus and --decode-gpus must be at least 1, and {_MOST} together at most; "
            f"got {prompts} and {replies}"
        )
    why = {
        "replicas": "which counts the engines by itself",
        "ray": "whose engines share the memory of one machine",
        "min_replicas": "whose engines all run",
        "tp": "whose engines run on one device each",
        "kv_window": "which sends whole prefixes",
        "kv_budget": "which sends whole prefixes",
        "dry_run": "since a dry run has no blocks to send",
    }
    usual: dict[str, object] = {"replicas": 1, "tp": 1, "dry_run": False}
    for name, reason in why.items():
        if getattr(options, name) != usual.get(name):
            option = f"--{name.replace('_', '-')}"
            raise BadInput(f"{option} cannot be combined with --prefill-gpus, {reason}")
