"""How much of an upload is told: the two numbers that a configuration and a site's policy have in common.

Without torch: a site reads its policy in a process that only watches others.
"""

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Protection(BaseModel):
    """How uploads are protected; off unless something is set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    clip: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="largest L2 norm of an upload's change; 0: no limit"
    )
    noise: float = Field(default=0.0, ge=0, allow_inf_nan=False, description="standard deviation, in units of the clip")

    @model_validator(mode="after")
    def _bounded(self) -> "Protection":
        if self.noise and not self.clip:
            raise ValueError("noise without a clip protects nothing: set clip as well, the longest change to be told")
        return self

    @property
    def on(self) -> bool:
        return self.clip > 0
