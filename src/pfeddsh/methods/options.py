"""Settings that methods have in common; each method declares its own in a class `Settings`."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Options(BaseModel):
    """Base of a method's typed settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Statistics = Literal["own", "pooled", "fresh", "blended"]


class Normalised(Options):
    """Whose statistics normalise the served model's features; the default is what step 1 says (docs/baselines.md)."""

    statistics: Statistics = Field(
        default="own",
        description="a client's own at the end of its step (own); those of its whole batch together (pooled); its own, "
        "recomputed with the model it is served now (fresh); or the mean of the last two (blended)",
    )


class PriorAware(Options):
    """Whether clients raise their logits by their own label prior, in training and in serving (`mechanisms.prior`)."""

    prior: bool = Field(default=False, description="add each client's log label shares to its logits, at the client")
