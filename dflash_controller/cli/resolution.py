"""What the operator would make of a DFlashDeployment, without a cluster: its first revision, or what keeps it from being known.

The model hub is not asked: a branch stays a branch here, and the operator resolves it to a commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from dflash_controller.api.defaults import block_size, speculation_of
from dflash_controller.api.speculation import Speculation
from dflash_controller.api.types import Spec
from dflash_controller.cli.failures import Failure
from dflash_controller.engines import ENGINES
from dflash_controller.engines.memory import LEAST_CONTEXT
from dflash_controller.engines.resolve import OperatorDefaults, Resolved

_GB = 1e9
_PLACEHOLDER = "0123456789abcdef0123456789abcdef01234567"
"""The commit in the examples. No model has it."""


@dataclass(frozen=True, slots=True)
class Made:
    """What a spec comes to with catalog and operator defaults filled in."""

    spec: Spec
    resolved: Resolved
    speculation: Speculation

    @staticmethod
    def of(spec: Spec, resolved: Resolved) -> Made:
        """Returns it with the speculation of a first revision."""
        return Made(spec, resolved, speculation_of(block_size(spec, resolved.trained_block_size)))


def operator_defaults(settings: Sequence[str]) -> OperatorDefaults:
    """Returns the operator's defaults under settings as ``DFLASH_NAME=VALUE``; without any, those of this release. Raises Failure."""
    if not settings:
        return OperatorDefaults()
    # Only here: these modules take longer to import than everything else that ``render`` needs.
    from dflash_controller.runtime.settings import PREFIX, Settings, SettingsError
    from dflash_controller.runtime.wiring import operator_defaults as of

    pairs = [setting.partition("=") for setting in settings]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise Failure(f"--setting {wrong[0]}: must be NAME=VALUE, as in DFLASH_ALLOWED_HOST_PATHS=/mnt/models")
    # The operator overlooks variables that are not its own. Whoever names one here means a setting.
    known = {f"{PREFIX}{field.upper()}" for field in Settings.model_fields}
    if wrong := [name for name, _, _ in pairs if name not in known]:
        near = get_close_matches(f"{PREFIX}{wrong[0].upper().removeprefix(PREFIX)}", known, n=1, cutoff=0.75)
        raise Failure(f"--setting {wrong[0]}: unknown setting{f'; {near[0]} may be meant' if near else ''}")
    try:
        return of(Settings.from_environment({name: value for name, _, value in pairs}))
    except SettingsError as error:
        raise Failure(f"--setting {error}") from error


def advice(made: Made) -> list[str]:
    """Returns what is worth knowing and not wrong: the notices that the operator would show."""
    resolved, found = made.resolved, []
    loose = [f"spec.{part}.revision" for part in ("target", "drafter") if not getattr(resolved, part).pinned]
    if loose:
        found.append(f"{' and '.join(loose)}: not a commit, so the operator asks the model hub. Set a 40-digit commit to pin it")
    if kept := [f"spec.{part}.revision" for part in ("target", "drafter") if getattr(resolved, part).revision == _PLACEHOLDER]:
        found.append(f"{' and '.join(kept)}: the placeholder of the examples. Replace it with the commit that you tested")
    if not resolved.tested:
        found.append(f"spec.engine.version: {resolved.version} is untested and gets the command line of {resolved.dialect}")
    fit = ENGINES[resolved.engine].fit(resolved.launch_request(made.speculation))
    if fit is not None and fit.fitting < fit.asked:
        remedies = ", or ".join(fit.remedies)
        found.append(
            f"spec.engine.maxConcurrency: {fit.asked} requests of {LEAST_CONTEXT} tokens need about {fit.needed / _GB:.1f} GB of each "
            f"accelerator beside the weights, and {fit.available / _GB:.1f} GB are left: about {fit.fitting} fit. To help: {remedies}"
        )
    if resolved.nodes > 1:
        found.append("spec.parallelism.nodes: the cluster needs LeaderWorkerSet 0.9 or later")
    if made.spec.accelerator.rdma is not None:
        found.append("spec.accelerator.rdma: pods get the capability IPC_LOCK, which needs a namespace of the privileged level")
    return found
