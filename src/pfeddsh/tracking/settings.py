"""The complete configuration as trackers want it: one flat table."""

import json

from pfeddsh.config import Config


def settings(config: Config) -> dict[str, str | int | float]:
    """Every key of the configuration; those of the method as `options.NAME`."""
    values = config.model_dump(mode="json")
    values |= {f"options.{name}": value for name, value in values.pop("options").items()}
    return {key: value if isinstance(value, str | int | float) else json.dumps(value) for key, value in values.items()}
