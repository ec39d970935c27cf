"""A configuration and its method: what the method presets is filled in, and the two are checked against each other."""

from typing import Any

from pfeddsh.config import Config
from pfeddsh.errors import UserError
from pfeddsh.methods import registry
from pfeddsh.values import checked


def build(values: dict[str, Any], where: str = "configuration") -> Config:
    """A complete configuration, or an error that names each wrong key and the nearest valid one."""
    return complete(checked(Config, values, where))


def complete(config: Config) -> Config:
    """All settings of the method written out; one that is complete stays as it is."""
    entry, given = registry.find(config.method), config.model_fields_set
    presets = {name: getattr(entry, name) for name in ("later", "existing") if name not in given}
    config = config.model_copy(update={**presets, "options": entry.options(config.options)})
    if config.later == "frozen-head" and entry.method.whole_only:
        raise UserError(f"later = frozen-head: {config.method} has a training of its own, of the whole model")
    if config.privacy.on and not entry.method.sends_changes:
        raise UserError(
            f"privacy: {config.method} sends more than a change of what it downloads, or that of no client; it "
            "cannot be clipped (docs/privacy.md says which methods can)"
        )
    if config.options.get("finetune") and config.existing == "follow":
        raise UserError("options.finetune: only a client that keeps its model can tune it; set existing = keep")
    return config
